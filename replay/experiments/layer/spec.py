"""Everything that decides one replay, as one frozen object.

`RunSpec` is the only place that says which settings a replay has. The options of the command line,
the settings of a study, their checks and help texts, the file that describes a replay, and the
identity of a replay are all made from its fields: a new setting is one more field here, and the
line that heeds it. A setting that refers to something, such as a file, is also listed in
`replay.experiments.base.identity.BY_VALUE`, so that its content enters the identity and not its
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from replay.chains.jitter import normal_form
from replay.chains.settings import PAIRED, Direction, Interleaving, SharedExperts
from replay.errors import UserError, shown, unknown
from replay.experiments.base.values import flattened, plain, toml_of
from replay.files import parse_toml
from replay.model.machine.host import Launch
from replay.model.work.batch import Phase
from replay.model.work.placement import placement_name
from replay.model.work.precision import NumberType
from replay.model.work.replicas import ReplicaRule

DEFAULT_SYSTEM = "dgx-h100"

MOST = 2**31
"""Of ranks, tokens and steps: sums of them fit 64 bits, and no machine replays as many."""


@dataclass(frozen=True)
class Flag:
    """Spelling of a setting on the command line, where that is not its name.

    Attributes
    ----------
    name
        Such as ``"--set"``.
    form
        How one entry of a table is written, such as ``"KEY=VALUE"``.
    """

    name: str
    form: str


class RunSpec(BaseModel):
    """Everything that decides one replay; what is None is taken from the trace or the system.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    trace: str | None = Field(
        None, description="A file, a URL, or a name of `moereplay trace list`."
    )
    content_id: str | None = Field(
        None, description="Content id that the trace must have; another trace is refused."
    )
    model: str | None = Field(
        None,
        description="Shape of the trace's model, where the trace has none: a name of "
        "`moereplay trace models`, or a file.",
    )
    scheme: str | None = Field(
        None, description="A name of `moereplay schemes`, or FILE.py:NAME, which executes the file."
    )
    options: Annotated[dict[str, JsonValue], Flag("--option", "K=V")] = Field(
        {}, description="Option of the scheme: K=V, repeatable."
    )
    system: str = Field(
        DEFAULT_SYSTEM, description="A name of `moereplay hardware list`, or a TOML file."
    )
    overrides: Annotated[dict[str, JsonValue], Flag("--set", "KEY=VALUE")] = Field(
        {}, description="Change a hardware value: KEY=VALUE, repeatable."
    )
    ranks: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="GPUs in the group [the trace's own, or all of the system].",
    )
    tokens_per_rank: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Tokens per GPU [4096 in prefill, 64 running requests in decode].",
    )
    layer: int | tuple[int, ...] | Literal["all"] = Field(
        "all", description="Position of an MoE layer, several positions (0,2,5), or 'all'."
    )
    phase: Phase | None = Field(None, description="prefill or decode [what the trace holds].")
    step: int = Field(0, ge=0, le=MOST, description="First step; later steps take later tokens.")
    steps: int = Field(1, ge=1, le=MOST, description="Number of steps in sequence.")
    direction: Direction = Field(
        "forward", alias="pass", description="forward, backward or training (both)."
    )
    barrier: bool = Field(
        False, description="Replay each layer by itself instead of chaining layers per GPU."
    )
    sample_layers: int | None = Field(
        None,
        ge=2,
        description="With --barrier: replay so many of the layers, and estimate the whole.",
    )
    sample_nodes: int | None = Field(
        None,
        ge=1,
        description="Replay so many of the nodes in full, the busiest first, and of others "
        "what these take part in.",
    )
    compare_barrier: bool = Field(
        False,
        description="Of chained layers, also find the time with a barrier after each, unless "
        "micro-batches take turns.",
    )
    placement: str = Field(
        "contiguous",
        description="contiguous, round-robin, random:SEED, eplb:SLOTS[:NODES], greedy:SLOTS, "
        "affinity:SLOTS:NODES, file:PATH; or planned anew for every layer's rows: ultraep:SLOTS, "
        "moonep.",
    )
    replicas: ReplicaRule = Field(
        "same-gpu",
        description="Replica of an expert that a row goes to, by the rule of an engine: same-gpu, "
        "nearest or random (SGLang), round-robin (TensorRT-LLM), position or hash (vLLM); or load.",
    )
    expert_tp: int = Field(
        1,
        ge=1,
        le=MOST,
        description="GPUs that share each routed expert, neighbours with a slice of its inner "
        "width each: tensor parallelism inside expert parallelism.",
    )
    precision: NumberType | None = Field(
        None,
        description="Number type of GEMMs and rows, bf16, fp8 (with bf16 rows back) or fp32 "
        "[the model's own].",
    )
    gemm_type: NumberType | None = Field(
        None, description="Number type of the experts' GEMMs, where precision has another."
    )
    dispatch_rows: NumberType | None = Field(
        None, description="Number type of rows to the experts, where precision has another."
    )
    combine_rows: NumberType | None = Field(
        None, description="Number type of rows back, where precision has another."
    )
    shared_experts: SharedExperts = Field(
        "between",
        description="between: shared experts run before the dispatch. beside-dispatch: they share "
        "SMs and memory with it.",
    )
    interleave: Interleaving = Field(
        "off",
        description="Two micro-batches in turns, each of half the tokens: tbo (SGLang's two-batch "
        "overlap) or dbo (vLLM's dual-batch overlap). One that overlaps with itself: sbo, "
        "of SGLang, too. With --pass training, a forward pass of the next step's batch beside the "
        "backward pass of this one's, in the order of DualPipe (dualpipe) or of Megatron-LM "
        "(megatron). off: stage after stage.",
    )
    launch: Launch | None = Field(
        None,
        description="eager (kernel by kernel) or graph (captured in CUDA graphs) [graph in decode "
        "if the scheme can be captured, else eager].",
    )
    tune: bool | None = Field(
        None,
        description="Let schemes choose among their splits of the SMs, by replay: all that have "
        "one, or none [those whose library profiles].",
    )
    jitter: Annotated[str, AfterValidator(normal_form)] = Field(
        "off",
        description="Hold each GPU up at the begin of each layer for a random time: "
        "lognormal:MEDIAN_US:SPREAD, the spread of its natural logarithm; or off.",
    )
    jitter_seed: int = Field(0, ge=0, le=MOST, description="Seed of these times.")

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise mistake(error) from None

    @model_validator(mode="before")
    @classmethod
    def _plain_numbers(cls, given: Any) -> Any:
        """Take numbers of numpy for numbers."""
        return plain(given)

    @field_validator("layer", mode="before")
    @classmethod
    def _positions(cls, given: Any) -> int | tuple[int, ...] | str:
        if isinstance(given, str) and given == "all":
            return given
        if isinstance(given, Integral) and not isinstance(given, bool):
            positions = [given]
        elif isinstance(given, str) or not hasattr(given, "__iter__"):
            positions = []
        else:
            positions = list(given)
        found = tuple(int(one) for one in positions if isinstance(one, Integral))
        if not found or len(found) < len(positions) or min(found) < 0:
            message = (
                f"layer {given!r}: possible are the position of an MoE layer (0 and more), several "
                "positions, or 'all'"
            )
            raise UserError(message)
        return found[0] if len(found) == 1 else found

    @field_validator("overrides", mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        """Take nested tables, as TOML writes dotted keys, for dotted keys."""
        return flattened(given) if isinstance(given, Mapping) else given

    @field_validator("placement", mode="before")
    @classmethod
    def _known_placement(cls, given: Any) -> str:
        return placement_name(given)

    def changed(self, **settings: Any) -> RunSpec:
        """Make a spec with other values of some settings.

        Options belong to their scheme: another scheme without options of its own takes its
        defaults.

        Raises
        ------
        UserError
            If a setting does not exist or a value is not possible.
        """
        values = self.model_dump()
        if settings.get("scheme", self.scheme) != self.scheme:
            values["options"] = {}
        for name, value in settings.items():
            values[_NAMES.get(name, name)] = value
        return RunSpec(**values)

    @property
    def pairs_passes(self) -> bool:
        """Whether a forward pass runs beside a backward pass."""
        return self.interleave in PAIRED

    @property
    def makes_one_graph(self) -> bool:
        """Whether the replay has one schedule, whatever the trace holds."""
        has_one_layer = isinstance(self.layer, int) and self.steps == 1
        return not self.barrier or (has_one_layer and self.direction != "training")

    def to_toml(self) -> str:
        """Give the settings that are not the defaults, as TOML."""
        lines, tables = [], []
        for name, value in self.settings().items():
            if isinstance(value, dict):
                entries = [f"{toml_of(key)} = {toml_of(one)}" for key, one in value.items()]
                tables += ["", f"[{name}]", *entries]
            else:
                lines.append(f"{name} = {toml_of(value)}")
        return "\n".join([*lines, *tables]) + "\n"

    def settings(self) -> dict[str, Any]:
        """Give the settings that are not the defaults, as plain values by the names files use."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @classmethod
    def from_toml(cls, text: str, where: str = "the spec") -> RunSpec:
        """Read what `to_toml` writes.

        Parameters
        ----------
        text
            TOML.
        where
            What to call it in errors.

        Raises
        ------
        UserError
            If it is not TOML, a setting does not exist or a value is not possible.
        """
        try:
            document = parse_toml(text)
        except ValueError as error:
            message = f"{where}: not valid TOML: {error}"
            raise UserError(message) from None
        try:
            return cls(**document)
        except UserError as error:
            message = f"{where}: {error}"
            raise UserError(message) from None


def words() -> dict[str, str]:
    """Give the names of the fields by the words that files and commands use for them."""
    return {field.alias or name: name for name, field in RunSpec.model_fields.items()}


_NAMES = words()


def check_setting(word: str, value: Any) -> None:
    """Refuse a value that no replay can have.

    Parameters
    ----------
    word
        A key of `words`.
    value
        Its value.

    Raises
    ------
    UserError
        Saying what is possible.
    """
    RunSpec(**{word: value})


_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "int_type": "a whole number",
    "string_type": "text",
}


def mistake(error: ValidationError) -> UserError:
    """Say in a line what is wrong with settings, and what is possible."""
    first = error.errors(include_url=False)[0]
    name, value = str(first["loc"][0]), first["input"]
    word = next((word for word, field in words().items() if name in (word, field)), name)
    if first["type"] == "value_error":
        return UserError(str(first["ctx"]["error"]))
    if first["type"] == "extra_forbidden":
        return unknown("setting", name, words())
    if first["type"] == "greater_than_equal":
        return UserError(f"{word} must be at least {first['ctx']['ge']}, not {value}")
    if first["type"] == "less_than_equal":
        return UserError(f"{word} must be at most {first['ctx']['le']}, not {value}")
    if first["type"] == "literal_error":
        return unknown(word, str(value), choices(words()[word]))
    expected = _EXPECTED.get(first["type"])
    where = ".".join([word, *(str(part) for part in first["loc"][1:2])])
    problem = f"expected {expected}" if expected else first["msg"].lower()
    return UserError(f"{where} = {shown(value)}: {problem}")


def choices(name: str) -> tuple[str, ...]:
    """Texts that a setting may be; nothing where any text will do."""
    kinds = [RunSpec.model_fields[name].annotation]
    found: list[str] = []
    for kind in kinds:
        if getattr(kind, "__origin__", None) is Literal:
            found += get_args(kind)
        else:
            kinds += get_args(kind)
    return tuple(found)
