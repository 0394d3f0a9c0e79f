"""Results of replays: the schemas ``moereplay-result/3`` and ``moereplay-comparison/3``.

Times are microseconds (exact multiples of a picosecond), bytes are whole numbers, and lists have
one entry per GPU. Nothing depends on the clock or the machine that computed it: the same input
gives the same bytes. `replay.load_result` reads files of this and of older schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from replay.errors import UserError
from replay.experiments.base.names import find_one, row_names
from replay.experiments.base.result import (
    ComparisonBase,
    SchemeDescription,
    SystemDescription,
    TimedResult,
)
from replay.experiments.base.rows import COLUMNS, row_of
from replay.experiments.base.spec import present_words
from replay.experiments.layer.bands import Uncertainty
from replay.experiments.layer.spec import RunSpec
from replay.measure.parts import Room
from replay.measure.result import ChainedLayer, ChainResult, LayerResult
from replay.model.work.precision import NUMBER_TYPES, Precision
from replay.model.work.stacks import BARE
from tracegen.shared.display.frames import data_frame, flat
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    import pandas

    from replay.measure.result import Measures
    from replay.model.work.stacks import Stack

RESULT_FORMAT: Literal["moereplay-result/3"] = "moereplay-result/3"
BARE_HOSTS = "bare hosts"
"""Hosts of no stack."""


class TraceDescription(Strict):
    """The trace that was replayed: its content, and the sizes of its model."""

    content_id: str
    title: str
    model: str
    num_experts: int
    topk: int
    hidden: int
    moe_intermediate: int


class BatchDescription(Strict):
    """Settings that decided the tokens of the first step.

    Attributes
    ----------
    num_ranks, phase
        GPUs in the group; ``"prefill"`` or ``"decode"``.
    batching
        How tokens came to run together.
    step
        The first step.
    tokens_per_rank
        None where the trace carries its own ranks.
    num_requests, num_slots_sharing_a_request
        Decode of a trace without ranks: the requests it holds, and the slots that run a request
        which another slot runs too.
    num_steps
        Likewise: steps after which every slot has run through its requests and begins again. Left
        out of the file where the replay ends before.
    """

    num_ranks: int
    phase: str
    batching: str
    step: int
    tokens_per_rank: int | None = None
    num_requests: int | None = None
    num_slots_sharing_a_request: int | None = None
    num_steps: int | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if self.num_steps is None:
            values.pop("num_steps", None)
        return values


class NumberTypes(Strict):
    """Types of the values that the experts' GEMMs multiply, and of rows on their way.

    FP8 rows have a scale per 128 values. Weights of the type of the rows that they are multiplied
    with are left out of the file.
    """

    gemm: str
    dispatch_type: str
    combine_type: str
    weights: str | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if self.weights is None:
            values.pop("weights", None)
        return values

    def __str__(self) -> str:
        """The types in words."""
        weights = f"{self.weights} weights, " if self.weights else ""
        return f"{self.gemm} GEMMs, {weights}{self.dispatch_type} rows out, {self.combine_type} rows back"


def number_types(precision: Precision) -> NumberTypes:
    """State the types of a precision."""
    return NumberTypes(
        gemm=precision.gemm,
        dispatch_type=precision.dispatch,
        combine_type=precision.combine,
        weights=None if precision.weights == precision.gemm else precision.weights,
    )


class Totals(Strict):
    """Sums over the layers replayed.

    Attributes
    ----------
    mean_layer_us
        Mean time of a layer: isolated, or in a chain with what lies between.
    uplink_payload_bytes, downlink_payload_bytes
        (rank,): rows of tokens that leave and reach each GPU over NVLink.
    """

    num_layers: int
    makespan_us: float
    mean_layer_us: float
    exposed_communication_us: float
    bound_us: float
    uplink_payload_bytes: list[int]
    downlink_payload_bytes: list[int]


class Whole(Strict):
    """All layers, estimated from some of them: no result of a replay.

    Attributes
    ----------
    num_layers, num_replayed
        Layers, and those of them that were replayed.
    makespan_us
        Their times, summed: an estimate.
    low_us, high_us, confidence
        Where the sum lies, with this probability. `replay.chains.layer_sampling` says how.
    """

    num_layers: int
    num_replayed: int
    makespan_us: float
    low_us: float
    high_us: float
    confidence: float


class StackDescription(Strict):
    """The software around a scheme's kernels.

    Attributes
    ----------
    name
        Of the stack, with the options that were given.
    options
        Every option of its kernel list, *dispatcher* among them.
    knows
        Whether the list knows the scheme as a dispatcher; if not, kernels that move rows are calls
        of an extension.
    """

    name: str
    options: dict[str, bool | int | str]
    knows: bool

    @classmethod
    def of(cls, stack: Stack, scheme: str) -> Self:
        """Describe a stack around a scheme's kernels."""
        return cls(name=stack.name, options=dict(stack.options), knows=stack.knows(scheme))


class TracedResult(TimedResult):
    """Inputs of a replay of a trace on one system under one scheme, by value.

    Attributes
    ----------
    spec
        What was asked for; it gives the same result again.
    trace, system, scheme, batch, placement, precision, types
        What the spec came to: everything that entered, by value. `precision` is the short form of
        `types` where there is one.
    launch
        How hosts launched kernels: one by one, or as CUDA graphs; ``"ahead"`` in results of
        versions whose hosts were always ahead of their GPUs.
    stack
        What launched them; the JSON has no such key where launches were bare.
    """

    spec: RunSpec
    trace: TraceDescription
    system: SystemDescription
    scheme: SchemeDescription
    batch: BatchDescription
    placement: str
    precision: str
    types: NumberTypes
    launch: Literal["eager", "graph", "ahead"] = "ahead"
    stack: StackDescription | None = Field(None, exclude_if=lambda stack: stack is None)

    @property
    def hosts(self) -> str:
        """Name of the stack that launched kernels, with the options that were given, or bare hosts."""
        return BARE_HOSTS if self.stack is None else self.stack.name

    @model_validator(mode="before")
    @classmethod
    def _of_bare_hosts(cls, given: Any) -> Any:
        """Let a result of a spec without a stack ask for bare hosts, which it had, and drop their estimate."""
        if not isinstance(given, Mapping) or not isinstance(spec := given.get("spec"), Mapping) or "stack" in spec:
            return given
        kept = {key: value for key, value in given.items() if key != "practice"}
        return {**kept, "spec": {**spec, "stack": BARE}}


class Result(TracedResult):
    """One trace on one system under one scheme, and everything needed to run it again.

    Attributes
    ----------
    room
        Whether a GPU has room for it; None where an older version did not say.
    layers, chain
        The measures: of isolated layers, or of one chain of layers.
    totals
        Sums over the layers that were replayed.
    estimate
        The whole, where only some of its layers were replayed (`RunSpec.sample_layers`).
    """

    format: Literal["moereplay-result/3"] = RESULT_FORMAT
    room: Room | None = None
    layers: list[LayerResult]
    chain: ChainResult | None = None
    totals: Totals
    estimate: Whole | None = None

    @model_validator(mode="before")
    @classmethod
    def _types_of_precision(cls, given: Any) -> Any:
        """Fill in the types of a result that states the short form alone, as they once did."""
        precision = given.get("precision") if isinstance(given, Mapping) else None
        if precision in NUMBER_TYPES and "types" not in given:
            return {**given, "types": number_types(Precision(precision)).model_dump()}
        return given

    @model_validator(mode="after")
    def _has_layers(self) -> Result:
        if not self.replayed_layers:
            message = "layers: none are there, and no result is without"
            raise ValueError(message)
        return self

    @property
    def headline_us(self) -> float:
        """Time of all layers."""
        return self.totals.makespan_us

    @property
    def replayed_layers(self) -> Sequence[LayerResult | ChainedLayer]:
        """Layers by themselves, or those of the chain."""
        return self.layers if self.chain is None else self.chain.layers

    @property
    def parts(self) -> Sequence[LayerResult | ChainResult]:
        """Parts of the result: isolated layers, or one chain of them."""
        return self.layers if self.chain is None else [self.chain]

    @property
    def schedules(self) -> list[Measures]:
        """The measures of each of `parts`."""
        return [part.measures for part in self.parts]

    def _rows(self) -> list[dict[str, Any]]:
        """One for each layer, with its measures."""
        same = {"scheme": self.scheme.name, "system": self.system.name}
        rows = []
        for layer in self.replayed_layers:
            document = layer.model_dump(mode="json", by_alias=True)
            measures = document.pop("measures", {})
            rows.append(same | flat(document) | flat(measures))
        return rows


AnyTraced = TypeVar("AnyTraced", bound=TracedResult)


class TracedComparison(ComparisonBase[AnyTraced], Generic[AnyTraced]):
    """The same routing on the same system under several schemes, or with several placements."""

    def _known_names(self) -> list[str]:
        names = row_names(self.results, marked=False)
        return [*(one.scheme.name for one in self.results), *names]

    @property
    def base(self) -> AnyTraced:
        """The baseline's result; of a scheme with several placements that with the first."""
        return self.results[self._place_of_base()]

    @property
    def base_name(self) -> str:
        """The name of the baseline's row."""
        return row_names(self.results, marked=False)[self._place_of_base()]

    def _place_of_base(self) -> int:
        names = row_names(self.results, marked=False)
        names += [one.scheme.name for one in self.results]
        return names.index(self.baseline) % len(self.results)

    def row(self, name: str) -> AnyTraced:
        """Find the result that a name means.

        Parameters
        ----------
        name
            As `replay.experiments.base.names.find_one` takes it: ``"deepep-ll"``, ``"deepep-ll,
            eplb:40"``.

        Raises
        ------
        UserError
            If there is none, or a scheme has several; with the names that there are.
        """
        return find_one(self.results, name)

    def __getitem__(self, name: str) -> AnyTraced:
        """Result by the name of its row, or of its scheme if that has one row."""
        try:
            return self.row(name)
        except UserError as error:
            raise self.missing(name, str(error)) from None


def with_present_types(document: Mapping[str, Any]) -> dict[str, Any]:
    """Call the types of rows by their present names, in a result that says which types there are."""
    types = {"types": present_words(document["types"])} if "types" in document else {}
    return {**document, **types}


def result_of_second(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-result/2`` one of the present schema."""
    return {**with_present_types(document), "format": RESULT_FORMAT}


class Comparison(TracedComparison[Result]):
    """Layers of a trace under several schemes, or with several placements."""

    format: Literal["moereplay-comparison/3"] = "moereplay-comparison/3"
    LEFT_OUT_IF_NONE: ClassVar[frozenset[str]] = frozenset({"uncertainty"})
    uncertainty: Uncertainty | None = None
    """How sure it is, where that was asked for; the JSON has no such key where it was not."""

    def to_dataframe(self) -> pandas.DataFrame:
        """Make a data frame with a row per result, in their order: `rows.COLUMNS`.

        `left_out` says of schemes that have no row why they have none.

        Raises
        ------
        UserError
            If pandas is not installed.
        """
        documents = [one.model_dump(mode="json", by_alias=True) for one in self.results]
        return data_frame(map(row_of, documents), COLUMNS)
