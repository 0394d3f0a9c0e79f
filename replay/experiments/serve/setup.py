"""References of a serving spec, resolved, and the identity that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pydantic import JsonValue

from replay.errors import UserError
from replay.experiments.base.experiment import NOTHING, SpecInputs
from replay.experiments.base.identity import identity_of, model_by_value
from replay.experiments.layer.setup import LayerSetup as Replay
from replay.experiments.layer.setup import check_needs, set_up
from replay.experiments.layer.spec import RunSpec
from replay.experiments.serve.batch import BatchLengths, batch_lengths
from replay.experiments.serve.engines import EngineHost, engine_of
from replay.experiments.serve.layers import ServedLayers
from replay.experiments.serve.parts import EngineParts, slice_heads
from replay.experiments.serve.routing import RoutingSource
from replay.experiments.serve.rules import Drafts
from replay.experiments.serve.spec import CODE
from replay.experiments.serve.times import ReplayedTimes
from replay.model.work.expert_slices import num_groups
from replay.model.work.placement import identify
from replay.model.work.precision import Precision
from replay.model.work.stacks import BARE
from replay.steps.routing import parse

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.serve.spec import InferSpec
    from replay.model.machine.host import Launch
    from replay.model.work.batch import Phase
    from replay.schemes.outside import AllowCode
    from tracegen import ModelShape, RoutingTrace

DEFAULT_MODEL = "qwen3-30b-a3b"  # for which a GPU of the default machine has room


@dataclass(frozen=True)
class ServingSide:
    """GPUs that prefill, that decode, or both.

    Attributes
    ----------
    system
        Their machine.
    num_gpus
        How many share each layer.
    tp
        GPUs of a worker.
    """

    system: System
    num_gpus: int
    tp: int

    @property
    def workers(self) -> int:
        """Groups of GPUs with requests of their own."""
        return self.num_gpus // self.tp


@dataclass(frozen=True)
class ServingSetup:
    """A spec with what its references lead to.

    Attributes
    ----------
    shape
        Shape of the model.
    trace
        Recorded routing; None where it is drawn.
    prefill, decode
        GPUs of each phase: the same where no others prefill.
    replays
        Settings of the replays of each phase, by its name.
    lengths
        Tokens of prompts and of what is made.
    drafts
        Speculative decoding.
    engine
        Its host and captured sizes; None where they are not heeded.
    """

    spec: InferSpec
    shape: ModelShape
    trace: RoutingTrace | None
    prefill: ServingSide
    decode: ServingSide
    replays: Mapping[Phase, Replay]
    lengths: BatchLengths
    drafts: Drafts
    engine: EngineHost | None

    @classmethod
    def of(cls, spec: InferSpec, given: SpecInputs[Self] = NOTHING) -> Self:
        """Follow the references of a spec.

        Raises
        ------
        UserError
            If a reference leads nowhere, or settings do not fit together.
        """
        import hwmodel

        engine = engine_of(*spec.of_engine)
        trace, shape = _routing(spec)
        spec = spec.with_scheme()
        system = hwmodel.load(spec.system, dict(spec.overrides))
        decode = _side(system, spec.decode_gpus, spec.tp, shape)
        prefill = decode
        if spec.is_apart:
            other = system if spec.prefill_system is None else hwmodel.load(spec.prefill_system)
            prefill = _side(other, spec.prefill_gpus, spec.tp, shape)
        if trace is None and spec.sample_steps is not None:
            message = (
                f"sample_steps {spec.sample_steps}: steps are of a recorded trace (--trace); drawn "
                "routing is the same in each"
            )
            raise UserError(message)
        if spec.tp > 1 and spec.interleave != "off":
            message = f"tp {spec.tp} with interleave {spec.interleave}: turns are replayed for tp 1"
            raise UserError(message)
        phases: dict[Phase, ServingSide] = {"prefill": prefill, "decode": decode}
        for side in phases.values():
            num_groups(spec.expert_tp, side.num_gpus, shape.moe_intermediate, spec.placement)
        return cls(
            spec=spec,
            shape=shape,
            trace=trace,
            prefill=prefill,
            decode=decode,
            replays={phase: _replay(spec, phase, side.system, given.allow_code) for phase, side in phases.items()},
            lengths=batch_lengths(spec, trace, decode.num_gpus),
            drafts=_drafts(spec.speculative),
            engine=engine,
        )

    @property
    def is_apart(self) -> bool:
        """Tell whether other GPUs prefill."""
        return self.spec.is_apart

    @property
    def precision(self) -> Precision:
        """Number types."""
        return Precision(self.spec.precision or self.shape.default_precision)

    @cached_property
    def times(self) -> Mapping[Phase, ReplayedTimes]:
        """Times of iterations on the GPUs of each phase."""
        decode = self._times(self.decode)
        return {"decode": decode, "prefill": self._times(self.prefill) if self.is_apart else decode}

    def _times(self, side: ServingSide) -> ReplayedTimes:
        return ReplayedTimes(
            system=side.system,
            shape=self.shape,
            layers={
                "prefill": self._layers("prefill", side),
                "decode": self._layers("decode", side),
            },
            parts=EngineParts(slice_heads(self.shape, side.tp), self.precision.gemm),
            num_workers=side.workers,
            tp=side.tp,
            engine=self.engine,
            uncaptured=self._layers("decode", side, launch="eager"),
        )

    def _layers(self, phase: Phase, side: ServingSide, launch: Launch | None = None) -> ServedLayers:
        kept = int(self.lengths.prompt.mean() + self.lengths.output.mean() / 2)
        longest = int(self.lengths.prompts_of(side.workers).max(initial=1))
        most = {
            "prefill": min(self.spec.chunk, -(-longest // side.tp)),
            "decode": self._most_requests * self.drafts.queries,
        }
        replays = self.replays[phase]
        if launch is not None:
            replays = replace(replays, spec=replays.spec.changed(launch=launch))
        return ServedLayers(
            setup=replays,
            routing=self._source(side),
            phase=phase,
            parts=EngineParts(self.shape, self.precision.gemm),
            positions=kept if phase == "decode" else 0,
            tolerance=self.spec.tolerance,
            most=most[phase],
        )

    @property
    def _most_requests(self) -> int:
        """Per GPU that decodes, padding among them."""
        if self.engine is None:
            return self.spec.requests
        return -(-self.engine.pad(self.spec.requests * self.spec.tp) // self.spec.tp)

    def _source(self, side: ServingSide) -> RoutingSource:
        # Layers that take turns are timed from the end of the first.
        least = 3 if self.spec.interleave != "off" else 1
        count = min(max(self.spec.sample_layers, least), self.shape.num_moe_layers)
        if self.trace is not None:
            return RoutingSource(self.shape, side.num_gpus, count, self.trace, sample_steps=self.spec.sample_steps)
        limited = self.spec.group_limited
        if limited is None:
            limited = self.shape.topk_group < self.shape.n_group
        return RoutingSource(
            self.shape,
            side.num_gpus,
            count,
            None,
            parse(self.spec.routing),
            limited,
            self.spec.seed,
        )

    @property
    def run_id(self) -> str:
        """Identity: of everything that decides the result."""
        entered = {
            "model": model_by_value(self.shape),
            "trace": None if self.trace is None else self.trace.content_id,
            "systems": [self.prefill.system.describe(), self.decode.system.describe()],
            "schemes": [one.description["scheme"] for one in self.replays.values()],
        }
        whole = ["expert_tp"] if self.spec.expert_tp == 1 else []  # as before they could be sliced
        return identity_of(
            CODE,
            self.spec,
            entered,
            left_out=["prefill_system", "prefill_scheme", "prefill_options", "fit", *whole],
            placement=identify(self.spec.placement),
        )


def _routing(spec: InferSpec) -> tuple[RoutingTrace | None, ModelShape]:
    """The trace, if there is one, and the model's shape."""
    import tracegen
    from tracegen.models import load as load_model

    if spec.trace is None:
        return None, load_model(spec.model or DEFAULT_MODEL)
    trace = tracegen.load(spec.trace)
    if trace.num_ranks is not None:
        message = (
            f"trace {spec.trace}: its tokens have GPUs of their own, and batches of other sizes "
            "cannot be cut from it; take a recorded one without, or --routing"
        )
        raise UserError(message)
    if spec.model is not None:
        trace = trace.with_shape(load_model(spec.model))
    return trace, trace.model_shape


def _side(system: System, asked: int | None, tp: int, shape: ModelShape) -> ServingSide:
    """GPUs of a phase.

    Raises
    ------
    UserError
        If there are too few, or they cannot be divided so.
    """
    count = system.num_gpus if asked is None else asked
    if count > system.num_gpus:
        message = f"{count} GPUs were asked for; system {system.name!r} has {system.num_gpus}"
        raise UserError(message)
    if count % tp or tp > system.fabric.gpus_per_domain or (shape.num_heads or tp) % tp:
        heads = f" and {shape.num_heads} heads" if shape.num_heads else ""
        message = (
            f"tp {tp} does not divide {count} GPUs{heads} evenly within one NVLink domain of "
            f"{system.fabric.gpus_per_domain}"
        )
        raise UserError(message)
    return ServingSide(system, count, tp)


def _replay(spec: InferSpec, phase: Phase, system: System, allow_code: AllowCode) -> Replay:
    """Settings of the replays of one phase."""
    is_decode = phase == "decode"
    options: Mapping[str, JsonValue] = spec.options if is_decode else spec.prefill_options
    if not is_decode and spec.of_prompts == spec.scheme:
        options = {**spec.options, **options}
    cut = spec.interleave if is_decode or spec.interleave != "sbo" else "off"
    asked = RunSpec(
        scheme=spec.scheme if is_decode else spec.of_prompts,
        options=dict(options),
        placement=spec.placement,
        expert_tp=spec.expert_tp,
        precision=spec.precision,
        interleave=cut,
        launch=spec.launch if is_decode else None,
        stack=spec.stack or BARE,
        phase=phase,
    )
    found = set_up(asked, {}, system, allow_code=allow_code)
    check_needs(found.scheme, system)
    return found


def _drafts(text: str | None) -> Drafts:
    """Read ``DRAFTS:ACCEPTANCE``.

    Raises
    ------
    UserError
        If it is something else.
    """
    if text is None:
        return Drafts()
    count, colon, share = text.partition(":")
    try:
        found = Drafts(int(count), float(share))
    except ValueError:
        found = Drafts(-1)
    if not colon or not 1 <= found.count <= 16 or not 0 <= found.acceptance <= 1:
        message = (
            f"--speculative {text}: expected DRAFTS:ACCEPTANCE, 1 to 16 drafts and a share from 0 to 1, such as 1:0.85"
        )
        raise UserError(message)
    return found
