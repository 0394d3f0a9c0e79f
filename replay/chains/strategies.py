"""In which order engines launch the stages of micro-batches, and who cannot be launched so.

Sources: sgl-project/sglang, ``batch_overlap/operations_strategy.py`` (tbo) and
``batch_overlap/single_batch_overlap.py`` (sbo); vllm-project/vllm, ``docs/design/dbo.md`` and
``v1/worker/ubatching.py`` (dbo); the profile that DeepSeek publishes of DualPipe
(deepseek-ai/profile-data, train.json), NVIDIA/Megatron-LM,
``core/models/common/model_chunk_schedule_plan.py`` (what runs in which order) and
``core/models/gpt/fine_grained_callables.py`` (what belongs to which part).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from replay.chains.jitter import OFF
from replay.errors import UserError
from replay.model.work.placement import PER_STEP
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.ep.staged import Stage, StagedScheme
from replay.schemes.registry import COMPARED

if TYPE_CHECKING:
    from replay.experiments.layer.spec import RunSpec
    from replay.schemes import Scheme
    from replay.schemes.ep.staged import Interleave, Releases

Part = Stage | Literal["prepare", "attend", "shared"]
"""A stage of a scheme, or a part of `replay.model.compute.dense.Between`, which lies before it."""


class Strategy(NamedTuple):
    """In which order an engine launches the parts of micro-batches.

    Attributes
    ----------
    kind
        Its name.
    stages
        Parts of a layer that are launched together. The micro-batches take turns stage by stage.
    shift
        Turns that the first micro-batch is ahead of the second.
    joins
        Whether a micro-batch goes on from the last stage of a layer to the first of the next
        without the other's turn between them.
    """

    kind: Interleave
    stages: tuple[tuple[Part, ...], ...]
    shift: int
    joins: bool = False


PairPart = Part | Literal["weights", "shared weights", "attention weights"]
"""A part of a pass; the last three are gradients of weights that a backward pass has put off."""


class PairOrder(NamedTuple):
    """In which order an engine launches a layer of a forward beside one of a backward pass.

    Attributes
    ----------
    kind
        Its name.
    launches
        Whether a launch is of the backward pass, and its parts; in order.
    """

    kind: Interleave
    launches: tuple[tuple[bool, tuple[PairPart, ...]], ...]


FORWARD, BACKWARD = False, True
ORDERS: Mapping[str, PairOrder] = {
    "dualpipe": PairOrder(
        "dualpipe",
        (
            (BACKWARD, ("send", "receive")),  # combine(B): the gradients' way to the experts
            (FORWARD, ("prepare", "attend", "send")),  # attn(F)
            (BACKWARD, ("shared", "experts")),  # mlp(B)
            (FORWARD, ("receive",)),  # dispatch(F)
            (BACKWARD, ("combine",)),  # dispatch(B): their way back
            (BACKWARD, ("weights", "shared weights")),  # mlp(W)
            (FORWARD, ("shared", "experts")),  # mlp(F)
            (BACKWARD, ("finish", "attend", "prepare")),  # attn(B)
            (BACKWARD, ("attention weights",)),  # attn(W)
            (FORWARD, ("combine", "finish")),  # combine(F)
        ),
    ),
    "megatron": PairOrder(
        "megatron",
        (
            (BACKWARD, ("send", "receive")),  # combine_bwd
            (FORWARD, ("prepare", "attend", "shared", "send")),  # attn_fwd
            (BACKWARD, ("experts",)),  # mlp_bwd
            (FORWARD, ("receive",)),  # dispatch_fwd
            (BACKWARD, ("weights",)),  # mlp_bwd_dw
            (BACKWARD, ("combine",)),  # dispatch_bwd
            (FORWARD, ("experts",)),  # mlp_fwd
            (FORWARD, ("combine",)),  # combine_fwd
            (BACKWARD, ("finish", "shared", "attend", "prepare")),  # attn_bwd
            (BACKWARD, ("attention weights", "shared weights")),
            (FORWARD, ("finish",)),
        ),
    ),
}
"""Orders of a layer pair. DualPipe's is that of its profile, in which where shared experts run is
not told apart: they are taken for a part of mlp. Megatron-LM has them with attention, and its
``delay_wgrad_compute`` is on. Sums behind a combine are of the next part that computes."""


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
        own, while of kernels with a hook the first half has launched the one that sends. SGLang
        concatenates the lists of all layers before it cuts them at their yields, and they end with
        none: what is behind the last one is launched with the next layer's first stage.
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
        return Strategy(kind, stages, 0, joins=True)
    stages = (  # the sum with the shared experts is the first kernel of the next "prepare" here
        ("prepare",), ("attend",), ("send", "shared"), ("receive", "experts", *first), second,
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
    if spec.interleave == "off":
        return
    asked = {
        f"--pass {spec.direction}: the lists are those of engines that serve": (
            spec.direction != "forward" and not spec.pairs_passes
        ),
        f"--pass {spec.direction}: a forward pass runs beside a backward pass; --pass training": (
            spec.direction != "training" and spec.pairs_passes
        ),
        "--barrier: passes go on side by side from layer to layer": (
            spec.barrier and spec.pairs_passes
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
