"""From a spec to a result."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from replay.errors import UserError, unknown
from replay.graph import GraphBuilder, schedule
from replay.machine.kinds import KIND_NAMES
from replay.machine.machine import Machine
from replay.measure.measured import measures
from replay.run.identity import code_identity, identity, sources
from replay.run.result import SystemDescription
from replay.tensor.fit import check_fit
from replay.tensor.layer import Sizes, TensorLayer, layer_of
from replay.tensor.measure import directions, skew_of
from replay.tensor.plain import Plain
from replay.tensor.registry import SCHEMES, find, supported
from replay.tensor.result import TensorComparison, TensorResult
from replay.tensor.shape import load
from replay.tensor.spec import PASSES, TensorSpec

if TYPE_CHECKING:
    from hwmodel import System
    from replay.graph import Timeline
    from replay.machine.host import Launch
    from replay.machine.machine import Ints
    from replay.tensor.base import TensorScheme
    from replay.tensor.shape import LayerShape

BASELINE = "sp-nvls"
PS_PER_US = 1_000_000
DEFAULT_TOKENS, DEFAULT_SEQUENCE, DEFAULT_REQUESTS = 8192, 2048, 64


class LayerRefusedError(UserError):
    """A scheme cannot run a layer on a system, which others may.

    Attributes
    ----------
    reason
        Why, for lists that name the scheme anyway.
    """

    def __init__(self, scheme: str, reason: str, possible: str = "") -> None:
        super().__init__(f"scheme {scheme!r} cannot run this: {reason}{possible}")
        self.reason = reason


@dataclass(frozen=True)
class Setup:
    """A spec with what its references lead to.

    Attributes
    ----------
    layers
        The layer of each pass.
    """

    spec: TensorSpec
    shape: LayerShape
    system: System
    scheme: TensorScheme
    num_ranks: int
    sizes: Sizes
    layers: tuple[TensorLayer, ...]

    @classmethod
    def of(cls, spec: TensorSpec) -> Self:
        """Follow the references of a spec.

        Raises
        ------
        UserError
            If a reference leads nowhere, or the layer cannot be sliced.
        LayerRefusedError
            If the scheme cannot run it.
        """
        import hwmodel

        system = hwmodel.load(spec.system, dict(spec.overrides))
        shape = load(spec.model)
        scheme = find(spec.scheme).with_options(spec.options)
        num_ranks = spec.tp or system.fabric.gpus_per_domain
        if num_ranks > system.fabric.gpus_per_domain:
            message = (
                f"tp {num_ranks}: an NVLink domain of {system.name!r} has "
                f"{system.fabric.gpus_per_domain} GPUs, and layers are sliced within one"
            )
            raise UserError(message)
        sizes = _sizes(spec, shape, system)
        layers = tuple(
            layer_of(shape, num_ranks, sizes, is_backward=is_backward, part=spec.part)
            for is_backward in PASSES[spec.direction]
        )
        if missing := scheme.lacks(system):
            reason = f"it needs {' and '.join(sorted(missing))}, which {system.name} lacks"
            possible = f"; {system.name} can run {', '.join(supported(system)) or 'none'}"
            raise LayerRefusedError(scheme.name, reason, possible)
        for layer in layers:
            if reason := scheme.refuses(layer):
                raise LayerRefusedError(scheme.name, reason)
        return cls(spec, shape, system, scheme, num_ranks, sizes, layers)

    @property
    def launch(self) -> Literal["ahead", "eager", "graph"]:
        """How hosts launch kernels."""
        return self.spec.launch or ("graph" if self.spec.phase == "decode" else "ahead")

    @property
    def host_launch(self) -> Launch | None:
        """The same as a machine takes it: None where no host holds anything up."""
        return None if self.launch == "ahead" else self.launch

    @property
    def run_id(self) -> str:
        """Identity of the replay: of everything that decides its result."""
        return identity({
            "code": [code_identity(), tensor_code()],
            "model": sizes_of(self.shape),
            "system": self.system.describe(),
            "scheme": {
                "name": self.scheme.name,
                "options": dataclasses.asdict(self.scheme.options),
            },
            "settings": {
                "tp": self.num_ranks,
                "tokens": self.sizes.tokens,
                "sequence": self.sizes.sequence,
                "phase": self.spec.phase,
                "pass": self.spec.direction,
                "part": self.spec.part,
                "layers": self.spec.layers,
                "launch": self.launch,
            },
        })  # fmt: skip


@functools.cache
def tensor_code() -> str:
    """SHA-256 of the source of this room."""
    digest = hashlib.sha256()
    for name, entry in sources("replay", "tensor"):
        if not name.endswith(".py"):
            continue  # shapes enter by value
        digest.update(name.encode() + b"\0" + entry.read_bytes() + b"\0")
    return digest.hexdigest()


def sizes_of(shape: LayerShape) -> dict[str, Any]:
    """Sizes of a model by name, without prose."""
    return shape.model_dump(mode="json", exclude={"title", "notes", "sources"})


def _sizes(spec: TensorSpec, shape: LayerShape, system: System) -> Sizes:
    own = shape.sequence_length or DEFAULT_SEQUENCE
    is_decode = spec.phase == "decode"
    if is_decode:
        tokens = spec.tokens or DEFAULT_REQUESTS
    else:
        batch = (shape.micro_batch or 0) * own
        tokens = spec.tokens or batch or DEFAULT_TOKENS
    sequence = spec.sequence or own
    if not is_decode:
        sequence = min(sequence, tokens)
    attention = system.attention
    return Sizes(tokens, sequence, is_decode, attention.tile_rows, attention.tile_keys)


def run(
    spec: TensorSpec | None = None,
    *,
    observe: Callable[[Timeline, Machine], object] | None = None,
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> TensorResult:
    """Replay a layer under one scheme.

    Parameters
    ----------
    spec
        The settings; None takes the defaults.
    observe
        Called with the schedule and its machine.
    report
        Told in a line what a long replay takes.
    settings
        Fields of `TensorSpec` by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    setup = Setup.of((spec or TensorSpec()).changed(**settings))
    check_fit([setup], _scheduled, report)
    return carry_out(setup, observe=observe)


def _scheduled(setup: Setup) -> Timeline:
    return replayed(setup, setup.scheme)[2]


def carry_out(
    setup: Setup, *, observe: Callable[[Timeline, Machine], object] | None = None
) -> TensorResult:
    """Replay what was set up."""
    machine, ends, timeline = replayed(setup, setup.scheme)
    if observe is not None:
        observe(timeline, machine)
    alone = replayed(setup, Plain(sequence_parallel=setup.scheme.sequence_parallel))[2]
    found = measures(timeline.graph, ends, machine, timeline, phases_separated=False)
    values = setup.system.describe()
    name, num_gpus = values.pop("name"), values.pop("num_gpus")
    up, down = directions(found)
    return TensorResult(
        run_id=setup.run_id,
        version=_version(),
        spec=setup.spec,
        model=sizes_of(setup.shape),
        system=SystemDescription(name=name, num_gpus=num_gpus, values=values),
        scheme=setup.scheme.describe(),
        tp=setup.num_ranks,
        tokens=setup.sizes.tokens,
        sequence=setup.sizes.sequence,
        time_us=found.makespan_us,
        layer_us=found.makespan_us / setup.spec.layers,
        products_us=alone.makespan_ps / PS_PER_US,
        exposed_us=found.exposed_communication_us,
        up=up,
        down=down,
        communication_sms=setup.scheme.communication_sms(machine),
        skew=skew_of(timeline, machine),
        measures=found,
    )


def replayed(setup: Setup, scheme: TensorScheme) -> tuple[Machine, Ints, Timeline]:
    """Schedule the layers of all passes, one behind the other.

    Returns
    -------
    The machine, (rank,) the last task of each, and the schedule.
    """
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(setup.system, graph, setup.num_ranks, launch=setup.host_launch)
    at = machine.mark(machine.ranks)
    for layer in setup.layers:
        in_a_row = dataclasses.replace(layer, steps=layer.steps * setup.spec.layers)
        at = scheme.build(in_a_row, machine, at)
    return machine, at, schedule(graph.build())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("moereplay")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def compare(
    spec: TensorSpec | None = None,
    schemes: Sequence[str] | None = None,
    *,
    baseline: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[], object] | None = None,
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> TensorComparison:
    """Replay a layer under several schemes.

    Parameters
    ----------
    spec
        The settings; its scheme and options are not heeded.
    schemes
        Names; None takes every scheme that the system supports and that can run the layer.
    baseline
        Scheme that speed-ups are given over; None takes sp-nvls, else the first.
    options
        Options by name, by name of the scheme.
    progress
        Called for every scheme.
    report
        Told in a line what long replays take.
    settings
        Fields of `TensorSpec` by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    shared = (spec or TensorSpec()).changed(**settings)
    names = list(dict.fromkeys(schemes or SCHEMES))
    for name in options or {}:
        if name not in names:
            raise unknown("scheme with options", name, names)
    if baseline is not None and baseline not in names:
        raise unknown("baseline", baseline, names)
    setups: list[Setup] = []
    left_out: dict[str, str] = {}
    for name in names:
        own = dict((options or {}).get(name, {}))
        try:
            setups.append(Setup.of(shared.changed(scheme=name, options=own)))
        except LayerRefusedError as error:
            if schemes or name == baseline:
                raise
            left_out[name] = error.reason
    if not setups:
        first = next(iter(left_out))
        message = f"no scheme can run this; {first}: {left_out[first]}"
        raise UserError(message)
    check_fit(setups, _scheduled, report)
    results = []
    for setup in setups:
        results.append(carry_out(setup))
        if progress is not None:
            progress()
    ran = [setup.scheme.name for setup in setups]
    return TensorComparison(
        baseline=baseline or (BASELINE if BASELINE in ran else ran[0]),
        results=results,
        left_out=left_out,
    )
