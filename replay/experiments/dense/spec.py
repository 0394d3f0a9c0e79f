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
    scheme: str = Field(
        "sp-nvls", description="A name of `moereplay tensor schemes`, or FILE.py:NAME, which executes the file."
    )
    options: Options = OPTIONS
    system: str = SYSTEM
    overrides: Overrides = OVERRIDES
    tp: int | None = Field(None, ge=1, le=1024, description="GPUs that the weights are sliced over [all of a node].")
    tokens: Count | None = Field(
        None,
        description="Tokens of the --tp GPUs together [the model's micro-batch, or 8192; 64 in decode].",
    )
    sequence: Count | None = Field(
        None,
        description="Tokens of a sequence; in decode, positions that each token attends to [the model's, or 2048].",
    )
    phase: Literal["prefill", "decode"] = Field("prefill", description="prefill or decode.")
    direction: Direction = Field("forward", alias="pass", description="forward, backward or training (both).")
    part: Part = Field(
        "layer",
        description="Part to replay: layer; or a sub-layer, from the last GEMM of one half to the first of the "
        "other: attention-to-mlp, mlp-to-attention.",
    )
    layers: int = Field(1, ge=1, le=1000, description="Equal layers that follow one another.")
    launch: Literal["ahead", "eager", "graph"] | None = Field(
        None,
        description="Launch of kernels: ahead (long before they run), eager (one by one) or graph (captured "
        "in a CUDA graph) [graph in decode, else ahead].",
    )
