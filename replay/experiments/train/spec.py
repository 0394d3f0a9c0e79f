"""Everything that decides one training step, as one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from replay.chains.jitter import normal_form
from replay.errors import UserError, shown, unknown
from replay.experiments.layer.spec import MOST, Flag
from replay.model.work.precision import NumberType


class TrainSpec(BaseModel):
    """Everything that decides one step; what is None is taken from the model.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str | None = Field(
        None,
        description="A name of `moereplay trace models`, a TOML file, or a config.json "
        "[the plan's, the trace's, or deepseek-v3].",
    )
    system: str | None = Field(
        None,
        description="A name of `moereplay hardware list`, or a TOML file [nodes of the plan, or "
        "dgx-h100, as many as the plan needs].",
    )
    overrides: Annotated[dict[str, JsonValue], Flag("--set", "KEY=VALUE")] = Field(
        {}, description="Change a hardware value: KEY=VALUE, repeatable."
    )
    plan: str = Field(
        "deepseek-v3",
        description="Sizes of a parallel plan, such as pp=8,dp=8,ep=8,micro_batches=32; or the "
        "name of a published one, with sizes behind it that replace its own.",
    )
    schedule: str | None = Field(
        None,
        description="Order of passes: gpipe, 1f1b, interleaved, megatron-overlap, zb-h1, zb-v or "
        "dualpipe [the plan's, or 1f1b].",
    )
    scheme: str = Field("deepep", description="A name of `moereplay schemes`.")
    options: Annotated[dict[str, JsonValue], Flag("--option", "K=V")] = Field(
        {}, description="Option of the scheme: K=V, repeatable."
    )
    sequence: int | None = Field(
        None, ge=1, le=MOST, description="Tokens of a sequence [the plan's, or 4096]."
    )
    precision: NumberType | None = Field(
        None, description="Number type of GEMMs and rows, bf16, fp8 or fp32 [the model's own]."
    )
    recipe: str | None = Field(
        None,
        description="Types of the numbers that are kept: megatron-bf16, megatron-bf16-moments or "
        "deepseek-v3 [the plan's, or what goes with the precision].",
    )
    trace: Annotated[str | None, Flag("--trace", "TRACE")] = Field(
        None,
        description="Routing of this trace: a file, a URL, or a name of `moereplay trace list`.",
    )
    routing: str = Field(
        "uniform",
        description="Routing where no trace is given: a kind of `moereplay trace generate` with "
        "its skew, such as zipf:0.6 or normal:0.032, or parameters: zipf:skew=0.6.",
    )
    samples: int = Field(
        1, ge=1, le=1000, description="Drawn routings that micro-batches take in turn."
    )
    layers_sampled: int = Field(
        2, ge=1, le=1000, description="MoE layers replayed of each; the others are like these."
    )
    sample_nodes: int | None = Field(
        None,
        ge=1,
        description="Replay so many of the nodes in full, the busiest first, and of others what "
        "these take part in.",
    )
    placement: str = Field(
        "contiguous", description="Experts of each GPU, as of `moereplay compare`."
    )
    seed: int = Field(0, ge=0, le=MOST, description="What routing is drawn from.")
    jitter: Annotated[str, AfterValidator(normal_form)] = Field(
        "off",
        description="Hold each GPU up before each time that GPUs of its stage meet, for a random "
        "time: lognormal:MEDIAN_US:SPREAD, the spread of its natural logarithm; or off.",
    )
    jitter_seed: int = Field(0, ge=0, le=MOST, description="Seed of these times.")
    fit: bool = Field(True, description="Refuse what does not fit into memory.")

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise _mistake(error) from None

    def changed(self, **settings: Any) -> TrainSpec:
        """Make a spec with other values of some settings; another scheme takes its defaults."""
        values = self.model_dump()
        if settings.get("scheme", self.scheme) != self.scheme:
            values["options"] = {}
        return TrainSpec(**{**values, **settings})

    def settings(self) -> Mapping[str, Any]:
        """Give the settings that are not the defaults, by the names that commands use."""
        return self.model_dump(mode="json", exclude_defaults=True)


def _mistake(error: ValidationError) -> UserError:
    first = error.errors(include_url=False)[0]
    word, given = str(first["loc"][0]), first["input"]
    if first["type"] == "value_error":
        return UserError(str(first["ctx"]["error"]))
    if first["type"] == "extra_forbidden":
        return unknown("setting", word, TrainSpec.model_fields)
    if first["type"] in ("greater_than_equal", "less_than_equal"):
        bound = first["ctx"].get("ge", first["ctx"].get("le"))
        which = "least" if "ge" in first["ctx"] else "most"
        return UserError(f"{word} must be at {which} {bound}, not {given}")
    if first["type"] == "literal_error":
        return UserError(f"{word} = {shown(given)}: possible are {first['ctx']['expected']}")
    return UserError(f"{word} = {shown(given)}: {first['msg'].lower()}")
