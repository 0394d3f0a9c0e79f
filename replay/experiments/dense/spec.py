"""Everything that decides one replay of a layer under tensor parallelism, as one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from replay.errors import UserError, shown, unknown
from replay.experiments.layer.spec import DEFAULT_SYSTEM, MOST, Flag
from replay.model.work.transformer_layer import Part

Direction = Literal["forward", "backward", "training"]
PASSES: dict[Direction, tuple[bool, ...]] = {
    "forward": (False,),
    "backward": (True,),
    "training": (False, True),
}
"""Whether each pass over the layer is the backward one."""


class TensorSpec(BaseModel):
    """Everything that decides one replay; what is None is taken from the model.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    model: str = Field(
        "llama-70b",
        description="A name of `moereplay tensor models`, a TOML file, or a config.json.",
    )
    scheme: str = Field(
        "sp-nvls", description="A name of `moereplay tensor schemes`, or FILE.py:NAME."
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
    tp: int | None = Field(
        None, ge=1, le=1024, description="GPUs that weights are sliced over [all of a node]."
    )
    tokens: int | None = Field(
        None, ge=1, le=MOST, description="Tokens of the group [the model's micro-batch]."
    )
    sequence: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Tokens of a sequence; in decode, positions that each token attends to "
        "[the model's own].",
    )
    phase: Literal["prefill", "decode"] = Field("prefill", description="prefill or decode.")
    direction: Direction = Field(
        "forward", alias="pass", description="forward, backward or training (both)."
    )
    part: Part = Field(
        "layer",
        description="layer; or a sub-layer, from the last product of one half to the first of the "
        "other: attention-to-mlp, mlp-to-attention.",
    )
    layers: int = Field(1, ge=1, le=1000, description="Equal layers in a row.")
    launch: Literal["ahead", "eager", "graph"] | None = Field(
        None,
        description="ahead (launched long before), eager (kernel by kernel) or graph (captured) "
        "[graph in decode, else ahead].",
    )

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise _mistake(error) from None

    def changed(self, **settings: Any) -> TensorSpec:
        """Make a spec with other values of some settings; another scheme takes its defaults."""
        values = self.model_dump()
        if settings.get("scheme", self.scheme) != self.scheme:
            values["options"] = {}
        return TensorSpec(**{**values, **settings})

    def settings(self) -> Mapping[str, Any]:
        """Give the settings that are not the defaults, by the names that commands use."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _mistake(error: ValidationError) -> UserError:
    first = error.errors(include_url=False)[0]
    word, given = str(first["loc"][0]), first["input"]
    if first["type"] == "extra_forbidden":
        return unknown("setting", word, TensorSpec.model_fields)
    if first["type"] in ("greater_than_equal", "less_than_equal"):
        bound = first["ctx"].get("ge", first["ctx"].get("le"))
        which = "least" if "ge" in first["ctx"] else "most"
        return UserError(f"{word} must be at {which} {bound}, not {given}")
    if first["type"] == "literal_error":
        return UserError(f"{word} = {shown(given)}: possible are {first['ctx']['expected']}")
    return UserError(f"{word} = {shown(given)}: {first['msg'].lower()}")
