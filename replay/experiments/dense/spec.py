"""Everything that decides one replay of a layer under tensor parallelism, as one frozen object."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from replay.experiments.base.spec import OPTIONS, OVERRIDES, SYSTEM, Count, Options, Overrides, Spec
from replay.model.work.transformer_layer import Part

Direction = Literal["forward", "backward", "training"]
PASSES: dict[Direction, tuple[bool, ...]] = {
    "forward": (False,),
    "backward": (True,),
    "training": (False, True),
}
"""Whether each pass over the layer is the backward one."""

CODE = ("experiments/dense",)
"""Rooms that decide a result, beside those of every replay."""


class TensorSpec(Spec):
    """Everything that decides one replay; what is None is taken from the model.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    model: str = Field(
        "llama-70b",
        description="A name of `moereplay tensor models`, a TOML file, or a config.json.",
    )
    scheme: str = Field("sp-nvls", description="A name of `moereplay tensor schemes`, or FILE.py:NAME.")
    options: Options = OPTIONS
    system: str = SYSTEM
    overrides: Overrides = OVERRIDES
    tp: int | None = Field(None, ge=1, le=1024, description="GPUs that weights are sliced over [all of a node].")
    tokens: Count | None = Field(None, description="Tokens of the group [the model's micro-batch].")
    sequence: Count | None = Field(
        None,
        description="Tokens of a sequence; in decode, positions that each token attends to [the model's own].",
    )
    phase: Literal["prefill", "decode"] = Field("prefill", description="prefill or decode.")
    direction: Direction = Field("forward", alias="pass", description="forward, backward or training (both).")
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
