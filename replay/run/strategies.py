"""In which order engines launch the stages of micro-batches, and who cannot be launched so.

Sources: sgl-project/sglang, ``batch_overlap/operations_strategy.py`` (tbo) and
``batch_overlap/single_batch_overlap.py`` (sbo); vllm-project/vllm, ``docs/design/dbo.md`` and
``v1/worker/ubatching.py`` (dbo).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from replay.errors import UserError
from replay.run.jitter import OFF
from replay.schemes.base import LayerRefusedError
from replay.schemes.registry import COMPARED
from replay.schemes.staged import Stage, StagedScheme
from replay.work.placement import PER_STEP

if TYPE_CHECKING:
    from replay.run.spec import RunSpec
    from replay.schemes import Scheme
    from replay.schemes.staged import Interleave, Releases

Part = Stage | Literal["prepare", "attend", "shared"]
"""A stage of a scheme, or a part of what lies before it, see `replay.compute.dense.Between`."""


class Strategy(NamedTuple):
    """In which order an engine launches the parts of micro-batches.

    Attributes
    ----------
    kind
        Its name.
    stages
        Parts of a layer that are launched together. The micro-batches take turns stage by stage.
    shift
        Stages that the first micro-batch is ahead of the second.
    """

    kind: Interleave
    stages: tuple[tuple[Part, ...], ...]
    shift: int


def strategy_of(kind: Interleave, phase: str, releases: Releases) -> Strategy:
    """Give the list of an engine.

    Parameters
    ----------
    kind
        "tbo" for SGLang's two-batch overlap, "dbo" for vLLM's dual-batch overlap, "sbo" for
        SGLang's single-batch overlap, which has one micro-batch.
    phase
        "prefill" or "decode", for which SGLang has lists of their own.
    releases
        See `StagedScheme`. SGLang's second half of a combine launches kernels of a stream of their
        own, while of kernels with a hook the first half has launched the one that sends.
    """
    stages: tuple[tuple[Part, ...], ...]
    if kind == "sbo":
        whole: tuple[Part, ...] = (
            "prepare", "attend", "send", "shared", "receive", "experts", "combine", "finish",
        )  # fmt: skip
        return Strategy(kind, (whole,), 0)
    if kind == "dbo":
        stages = (
            ("prepare", "attend"), ("send",), ("receive",), ("experts",), ("combine", "shared"),
            ("finish",),
        )  # fmt: skip
        return Strategy(kind, stages, 1)
    first: tuple[Part, ...] = ("combine",) if releases == "hook" else ()
    second: tuple[Part, ...] = ("finish",) if releases == "hook" else ("combine", "finish")
    if phase == "prefill":
        stages = (
            ("prepare", "attend", "send"), ("receive", "experts", *first), ("shared", *second),
        )  # fmt: skip
        return Strategy(kind, stages, 0)
    stages = (
        ("prepare",), ("attend",), ("send", "shared"), ("receive", "experts", *first), second,
        (),  # the sum with the shared experts, which is the first kernel of "prepare" here
    )  # fmt: skip
    return Strategy(kind, stages, 2)


def staged(scheme: Scheme, kind: Interleave) -> StagedScheme:
    """Give a scheme as it is interleaved.

    Raises
    ------
    LayerRefusedError
        If it keeps its SMs for a whole layer, has no kernels for this, or is not described in
        stages, naming the schemes that can.
    """
    if isinstance(scheme, StagedScheme) and kind in scheme.interleaves:
        return scheme.interleaved(kind)
    can = [
        name
        for name, one in COMPARED.items()
        if isinstance(one, StagedScheme) and kind in one.interleaves
    ]
    if kind == "sbo":
        message = (
            f"scheme {scheme.name!r}: no kernel that sends results while its second GEMM runs; "
            f"--interleave sbo has: {', '.join(can)}"
        )
        raise LayerRefusedError(message)
    message = (
        f"scheme {scheme.name!r}: no stages between which another micro-batch could run; "
        f"--interleave {kind} have: {', '.join(can)}"
    )
    raise LayerRefusedError(message)


def check_interleaved(spec: RunSpec) -> None:
    """Refuse what has no place beside micro-batches in turns.

    Raises
    ------
    UserError
        Saying what.
    """
    asked = {
        f"--pass {spec.direction}: the lists are those of engines that serve": (
            spec.direction != "forward"
        ),
        f"--shared-experts {spec.shared_experts}: the lists say where these run": (
            spec.shared_experts != "between"
        ),
        f"--jitter {spec.jitter}: a GPU that is held up holds up both micro-batches": (
            spec.jitter != OFF
        ),
        f"--placement {spec.placement}: a plan's slots hold replicas for one batch": (
            spec.placement.partition(":")[0] in PER_STEP
        ),
    }
    for what, is_asked in asked.items():
        if is_asked:
            message = f"--interleave {spec.interleave} does not go with {what}"
            raise UserError(message)
