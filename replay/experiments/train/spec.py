"""Everything that decides one training step, as one frozen object."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from replay.chains.jitter import normal_form
from replay.experiments.base.spec import (
    MOST,
    OPTIONS,
    OVERRIDES,
    PRECISION,
    ROUTING,
    SAMPLE_NODES,
    STACK,
    TRACE,
    Count,
    Options,
    Overrides,
    Spec,
)
from replay.experiments.train.pauses import MOST_MS, OFF, check
from replay.model.work.precision import NumberType

CODE = ("steps", "experiments/train")
"""Rooms that decide a result, beside those of every replay."""


class TrainSpec(Spec):
    """Everything that decides one step; what is None is taken from the model.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

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
    overrides: Overrides = OVERRIDES
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
    options: Options = OPTIONS
    stack: str | None = Field(
        None,
        exclude_if=lambda stack: stack is None,  # as results were before there was any
        description=f"{STACK} [bare, or as the option stack says].",
    )
    host_spread: float = Field(
        0.0,
        ge=0,
        le=2,
        exclude_if=lambda spread: not spread,
        description="Spread of hosts under a stack: standard deviation of the natural logarithm "
        "of what each GPU's host takes for a stage of a layer, at the same mean.",
    )
    collections: Annotated[str, AfterValidator(check)] = Field(
        OFF,
        exclude_if=lambda collections: collections == OFF,
        description="Python's collections of garbage: manual:MS:STEPS, on all hosts behind every "
        "STEPS-th step, or automatic:MS:STEPS, each host at times of its own; or off.",
    )
    data_ms: float = Field(
        0.0,
        ge=0,
        le=MOST_MS,
        exclude_if=lambda data_ms: not data_ms,
        description="Milliseconds that loaders take for the data of a micro-batch; a step waits for what exceeds it.",
    )
    sequence: Count | None = Field(None, description="Tokens of a sequence [the plan's, or 4096].")
    precision: NumberType | None = PRECISION
    dispatch_type: NumberType | None = Field(
        None,
        exclude_if=lambda dtype: dtype is None,
        description="Number type of rows to the experts, where precision has another.",
    )
    recipe: str | None = Field(
        None,
        description="Types of the numbers that are kept: megatron-bf16, megatron-bf16-moments or "
        "deepseek-v3 [the plan's, or what goes with the precision].",
    )
    trace: str | None = TRACE
    routing: str = ROUTING
    samples: int = Field(1, ge=1, le=1000, description="Drawn routings that micro-batches take in turn.")
    layers_sampled: int = Field(
        2, ge=1, le=1000, description="MoE layers that are replayed of each routing; the others are like these."
    )
    sample_nodes: Count | None = SAMPLE_NODES
    placement: str = Field("contiguous", description="Experts of each GPU, as of `moereplay compare`.")
    seed: int = Field(0, ge=0, le=MOST, description="Seed of drawn routing.")
    jitter: Annotated[str, AfterValidator(normal_form)] = Field(
        "off",
        description="Hold each GPU up before each time that GPUs of its stage meet, for a random "
        "time: lognormal:MEDIAN_US:SPREAD, the spread of its natural logarithm; or off.",
    )
    jitter_seed: int = Field(0, ge=0, le=MOST, description="Seed of these times.")
    clock: Literal["sustained", "alone"] = Field(
        "sustained",
        exclude_if=lambda clock: clock == "sustained",
        description="Clock of GPUs: sustained, which their power limit leaves to a step that is "
        "made again and again; or alone, as kernels are measured one by one. The same where a "
        "system's power is not known.",
    )
    fit: bool = Field(True, description="Refuse what does not fit into memory.")
