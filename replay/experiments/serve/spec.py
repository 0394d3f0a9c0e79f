"""Everything that decides how a batch of requests is served, as one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue

from replay.experiments.base.spec import (
    MOST,
    OPTIONS,
    OVERRIDES,
    PRECISION,
    ROUTING,
    SYSTEM,
    TRACE,
    Count,
    Options,
    Overrides,
    Spec,
)
from replay.experiments.serve.engines import engine_of_stack
from replay.model.machine.host import Launch
from replay.model.work.precision import NumberType

DECODING = ("deepep-ll", "cann-ep", "pangu")
"""Schemes of decoding where none is named: the first that the machine can run. The last needs no
library of a maker's."""

PREFILL_SCHEMES: Mapping[str, str] = {"deepep-ll": "deepep", "nccl-ep": "deepep"}
"""Schemes whose kernels are for decoding, and the one that their library has for prompts: DeepEP's
normal kernels, which SGLang and vLLM run prompts with where they decode with the low-latency ones.
NCCL EP's other mode is not modelled."""

Gpus = Annotated[int, Field(ge=2, le=MOST)]

CODE = ("steps", "experiments/serve")
"""Rooms that decide a result, beside those of every replay."""


class InferSpec(Spec):
    """Everything that decides one result; what is None is taken from the model or the system.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    model: str | None = Field(
        None,
        description="A name of `moereplay trace models`, a TOML file, or a config.json "
        "[the trace's own, else qwen3-30b-a3b].",
    )
    scheme: str = Field(
        DECODING[0],
        description="Scheme of decoding: a name of `schemes` [deepep-ll; without CUDA cann-ep or pangu].",
    )
    options: Options = OPTIONS
    prefill_scheme: str | None = Field(
        None, description="Scheme of prompts [deepep under deepep-ll and nccl-ep, else the same]."
    )
    prefill_options: dict[str, JsonValue] = Field({}, description="Options of that one.")
    system: str = SYSTEM
    overrides: Overrides = OVERRIDES
    decode_gpus: Gpus | None = Field(
        None, description="GPUs that share each layer, and its experts [all of the system]."
    )
    prefill_system: str | None = Field(None, description="System of other GPUs that prefill [the same].")
    prefill_gpus: Gpus | None = Field(
        None, description="Other GPUs that prefill, and hand over caches [the same GPUs]."
    )
    tp: int = Field(1, ge=1, le=1024, description="GPUs of a worker, which slice its heads.")
    requests: int = Field(64, ge=1, le=2**16, description="Requests per GPU that decodes.")
    prompt: int = Field(4096, ge=1, le=2**24, description="Tokens of a prompt.")
    output: int = Field(
        512,
        ge=1,
        le=2**20,
        description="Tokens that each request is decoded for, behind the first.",
    )
    lengths: Literal["even", "trace"] = Field(
        "even",
        description="even: all requests have --prompt and --output. trace: those of the trace's requests, in turn.",
    )
    chunk: int = Field(8192, ge=1, le=2**22, description="Tokens of prompts per GPU and iteration.")
    trace: str | None = TRACE
    routing: str = ROUTING
    group_limited: bool | None = Field(
        None, description="Keep drawn tokens to groups of experts [as the model's gate does]."
    )
    seed: int = Field(0, ge=0, le=MOST, description="Seed of drawn routing.")
    sample_layers: int = Field(2, ge=1, le=1000, description="MoE layers that are replayed in place of all.")
    sample_steps: int | None = Field(
        None,
        ge=2,
        le=1000,
        exclude_if=lambda steps: steps is None,  # as results were before there was any
        description="Steps of a recorded trace that are replayed for each number of tokens, the "
        "middles of as many equal stretches; their mean stands for an iteration [its first step].",
    )
    tolerance: float = Field(
        0.02,
        gt=0,
        le=1,
        description="Error of times between replayed numbers of tokens, at most, as a share of an MoE layer's time.",
    )
    placement: str = Field("contiguous", description="As that of `moereplay run`.")
    expert_tp: Count = Field(
        1,
        description="GPUs that share each routed expert, neighbours with a slice of its inner "
        "width each; all of them: tensor parallelism in place of expert parallelism.",
    )
    precision: NumberType | None = PRECISION
    interleave: Literal["off", "tbo", "dbo", "sbo"] = Field(
        "off", description="Two micro-batches in turns, as in `moereplay run`: tbo, dbo or sbo."
    )
    launch: Launch | None = Field(
        None,
        description="Launch of decoding: eager (kernel by kernel) or graph (captured) [graph if it can be captured].",
    )
    stack: str | None = Field(
        None,
        exclude_if=lambda stack: stack is None,  # as results were before there was any
        description="Software whose host launches the kernels, and takes time for each call that no graph holds: "
        "sglang, vllm, tensorrt-llm or megatron-inference, with any options, such as vllm:library_us=20; or bare. "
        "Its engine's host and captured graphs count, too [bare, or as the option stack says].",
    )
    engine: Literal["sglang", "vllm", "tensorrt-llm", "megatron"] | None = Field(
        None,
        description="Engine whose host and captured batch sizes count: sglang, vllm, "
        "tensorrt-llm or megatron [the stack's; without one hosts take no "
        "time, and every size has a graph].",
    )
    engine_host_us: float | None = Field(
        None, ge=0, le=1e9, description="Time of a step on the engine's host [the engine's]."
    )
    engine_overlap: bool | None = Field(
        None,
        description="Prepare each step while the one before runs [as the engine does].",
    )
    captured: str | None = Field(
        None,
        description="Batch sizes of a worker that graphs are captured for: 1,2,4,8, or any [the engine's].",
    )
    speculative: str | None = Field(
        None,
        description="Speculative decoding: DRAFTS:ACCEPTANCE, such as 1:0.85; drafted by a layer "
        "of multi-token prediction.",
    )
    fit: bool = Field(True, description="Refuse what does not fit into memory.")

    OPTIONS_OF: ClassVar[Mapping[str, str]] = {
        "scheme": "options",
        "prefill_scheme": "prefill_options",
    }

    def changed(self, **settings: Any) -> Self:
        """As `Spec.changed`; options of prompts belong to their scheme, named or implied."""
        made = super().changed(**settings)
        if made.of_prompts == self.of_prompts or "prefill_options" in settings:
            return made
        return made.model_copy(update={"prefill_options": {}})

    def with_scheme(self) -> Self:
        """Name the scheme of decoding where that is left to the machine."""
        import hwmodel
        from replay.schemes.registry import find

        if "scheme" in self.model_fields_set:
            return self
        system = hwmodel.load(self.system, dict(self.overrides))
        usual = next(name for name in DECODING if not find(name, None, allow_code=False).lacks(system))
        return (
            self
            if usual == self.scheme
            else self.changed(scheme=usual, options=dict(self.options), prefill_options=dict(self.prefill_options))
        )

    @property
    def of_prompts(self) -> str:
        """Scheme of prompts."""
        return self.prefill_scheme or PREFILL_SCHEMES.get(self.scheme, self.scheme)

    @property
    def of_engine(self) -> tuple[str | None, float | None, bool | None, str | None]:
        """Settings of the engine's host and graphs."""
        engine = self.engine or engine_of_stack(self.stack)
        return engine, self.engine_host_us, self.engine_overlap, self.captured

    @property
    def is_apart(self) -> bool:
        """Tell whether other GPUs prefill."""
        return self.prefill_system is not None or self.prefill_gpus is not None
