"""References of a placement's spec, resolved, and the identity that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from replay.errors import UserError
from replay.experiments.base.experiment import NOTHING, SpecInputs
from replay.experiments.base.identity import identity_of
from replay.experiments.place.demand import CountedDemand, ExpertDemand, TokenDemand
from replay.experiments.place.spec import CODE, EITHER
from replay.model.work.map_arrays import WhichLayer
from replay.model.work.placement import identify

if TYPE_CHECKING:
    from replay.experiments.place.spec import PlaceSpec
    from tracegen import RoutingTrace
    from tracegen.importers.loads import Loads
    from tracegen.models import ModelShape

WINDOWS = 4
"""Windows that are looked at where none are asked for."""
MOST_STEPS = 10_000  # of a trace: some take a minute and 100 MB already
RANKS = 8
WITHOUT_TOKENS = (
    "Loads alone do not tell which experts a token has together, nor which GPU it is on: rows of "
    "an expert are divided evenly among its replicas, and rows between nodes are not known."
)
"""Said whenever a placement is made of loads."""


@dataclass(frozen=True)
class PlaceSetup:
    """A spec with what its references lead to.

    Attributes
    ----------
    demand
        Of the trace or the loads.
    num_ranks, num_slots, num_groups
        GPUs, slots of all of them, and groups of experts.
    decoder_layers, num_decoder_layers
        Number of each layer with experts, and how many decoder layers the model has, for the
        formats of maps that have them.
    notes
        Sentences on what was assumed.
    """

    spec: PlaceSpec
    demand: ExpertDemand[Any]
    num_ranks: int
    num_slots: int
    num_groups: int
    decoder_layers: Sequence[int]
    num_decoder_layers: int
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: PlaceSpec, given: SpecInputs[Self] = NOTHING) -> Self:
        """Read the trace or the loads of a spec.

        Parameters
        ----------
        given
            May have a `tracegen.RoutingTrace` as ``trace``, or `tracegen.importers.loads.Loads` as
            ``loads``.

        Raises
        ------
        UserError
            If files hold no loads, or a model does not fit them.
        """
        objects = given.objects
        if "loads" in objects or spec.loads:
            spec.check_for_loads()
            return cls._of_loads(spec, objects.get("loads"))
        if "trace" in objects or spec.trace is not None:
            return cls._of_trace(spec, objects.get("trace"))
        raise UserError(EITHER)

    @classmethod
    def _of_trace(cls, spec: PlaceSpec, given: RoutingTrace | None) -> Self:
        import tracegen

        first, behind = spec.fitted_on or (0, 1)
        windows = spec.windows or WINDOWS
        if (behind - first) * windows > MOST_STEPS:
            message = f"steps {first}:{behind} in {windows} windows: at most {MOST_STEPS} steps are looked at"
            raise UserError(message)
        trace = tracegen.load(str(spec.trace)) if given is None else given
        if spec.model is not None:
            trace = trace.with_shape(tracegen.models.load(spec.model))
        shape = trace.model_shape
        num_ranks = spec.ranks or trace.num_ranks or RANKS
        return cls(
            spec=spec,
            demand=TokenDemand(trace, spec, num_ranks),
            num_ranks=num_ranks,
            num_slots=spec.slots or trace.model.num_ffn_experts,
            num_groups=shape.n_group if spec.groups is None else spec.groups,
            decoder_layers=trace.moe_layer_index.tolist(),
            num_decoder_layers=shape.num_layers,
        )

    @classmethod
    def _of_loads(cls, spec: PlaceSpec, given: Loads | None) -> Self:
        from tracegen.importers.loads import read_loads

        paths = [Path(one) for one in spec.loads]
        loads = read_loads(paths) if given is None else given
        shape = None
        if spec.model is not None:
            from tracegen.models import load

            shape = load(spec.model)
            loads = _of_model(loads, shape)
        notes = [WITHOUT_TOKENS, *loads.notices]
        loads = loads.number_layers(shape)
        if empty := loads.empty():
            which = ", ".join(map(str, empty))
            notes.append(f"{len(empty)} layers count nothing and were left out: {which}.")
        loads = loads.of_used()
        decoder = loads.layers
        if decoder is None:
            decoder = tuple(range(loads.counts.shape[1]))
            notes.append(
                "The layers are not numbered: they were taken for decoder layers 0 to "
                f"{decoder[-1]}; --model says otherwise."
            )
        total, experts = (0, ()) if shape is None else (shape.num_layers, shape.moe_layer_index)
        layers = [WhichLayer(position, number, total, experts, len(decoder)) for position, number in enumerate(decoder)]
        title = f"loads of {', '.join(path.name for path in paths)}" if paths else ""
        usual_groups = 1 if shape is None else shape.n_group
        return cls(
            spec=spec,
            demand=CountedDemand(loads.counts, title, layers),
            num_ranks=spec.ranks or RANKS,
            num_slots=spec.slots or loads.num_experts,
            num_groups=usual_groups if spec.groups is None else spec.groups,
            decoder_layers=decoder,
            num_decoder_layers=decoder[-1] + 1 if shape is None else shape.num_layers,
            notes=tuple(notes),
        )

    @property
    def map_file(self) -> str | None:
        """The map that is looked at, as a placement; None where one is fitted."""
        return None if self.spec.source is None else f"file:{self.spec.source}"

    @property
    def run_id(self) -> str:
        """Identity of the result: of everything that decides it."""
        return identity_of(
            CODE,
            self.spec,
            {
                "loads": self.demand.content_id,
                "source": None if self.map_file is None else identify(self.map_file),
            },
            ranks=self.num_ranks,
            slots=self.num_slots,
            groups=self.num_groups,
        )


def _of_model(loads: Loads, shape: ModelShape) -> Loads:
    """Loads of the experts of a model that have weights, each held against its top-k."""
    from tracegen.trace.rows_of_loads import rows_needed

    loads = loads.of_experts(shape.num_experts, f"--model {shape.name}")
    try:
        rows_needed(loads.counts, shape.topk)
    except UserError as error:
        message = f"--model {shape.name}: {error}"
        raise UserError(message) from None
    return replace(loads, counts=loads.counts[:, :, : shape.num_experts - shape.num_zero_experts])
