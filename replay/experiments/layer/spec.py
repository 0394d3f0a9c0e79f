"""Everything that decides one replay, as one frozen object.

`RunSpec` is the only place that says which settings a replay has. The options of the command line,
the settings of a study, their checks and help texts, the file that describes a replay, and the
identity of a replay are all made from its fields: a new setting is one more field here, and the
line that heeds it. A setting that refers to something, such as a file, is also listed in
`replay.experiments.base.identity.BY_VALUE`, so that its content enters the identity and not its
name.
"""

from __future__ import annotations

from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    field_validator,
)

from replay.chains.jitter import normal_form
from replay.chains.settings import PAIRED, Direction, Interleaving, SharedExperts
from replay.errors import UserError
from replay.experiments.base.spec import (
    MOST,
    OPTIONS,
    OVERRIDES,
    PRECISION,
    SAMPLE_NODES,
    STACK,
    SYSTEM,
    Count,
    Options,
    Overrides,
    Spec,
)
from replay.model.machine.host import Launch
from replay.model.work.batch import Phase
from replay.model.work.placement import placement_name
from replay.model.work.precision import NumberType, ValueType
from replay.model.work.replicas import ReplicaRule


class RunSpec(Spec):
    """Everything that decides one replay; what is None is taken from the trace or the system.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    trace: str | None = Field(None, description="A file, a URL, or a name of `moereplay trace list`.")
    content_id: str | None = Field(None, description="Content id that the trace must have; another trace is refused.")
    model: str | None = Field(
        None,
        description="Shape of the trace's model, where the trace has none: a name of "
        "`moereplay trace models`, or a file.",
    )
    scheme: str | None = Field(
        None, description="A name of `moereplay schemes`, or FILE.py:NAME, which executes the file."
    )
    options: Options = OPTIONS
    system: str = SYSTEM
    overrides: Overrides = OVERRIDES
    ranks: Count | None = Field(None, description="GPUs in the group [the trace's own, or all of the system].")
    tokens_per_rank: Count | None = Field(
        None, description="Tokens per GPU [4096 in prefill, 64 running requests in decode]."
    )
    layer: int | tuple[int, ...] | Literal["all"] = Field(
        "all", description="Position of an MoE layer, from 0 on, several positions (0,2,5), or 'all'."
    )
    phase: Phase | None = Field(None, description="prefill or decode [what the trace holds].")
    step: int = Field(0, ge=0, le=MOST, description="First step; later steps take later tokens.")
    steps: Count = Field(1, description="Number of steps in sequence.")
    direction: Direction = Field("forward", alias="pass", description="forward, backward or training (both).")
    barrier: bool = Field(False, description="Replay each layer by itself instead of chaining layers per GPU.")
    communication_only: bool = Field(
        False,
        description="Replay dispatch and combine alone, each layer by itself: experts take no time "
        "and launch nothing. Rows go back when they have come, as the scheme orders them: behind "
        "the dispatch or, in a fused kernel, beside what is still coming.",
    )
    sample_layers: int | None = Field(
        None,
        ge=2,
        description="With --barrier: replay so many of the layers, and estimate the whole.",
    )
    sample_nodes: Count | None = SAMPLE_NODES
    compare_barrier: bool = Field(
        False,
        description="Of chained layers, also find the time with all GPUs meeting after each, unless micro-batches "
        "take turns.",
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
        "nearest or random (SGLang), round-robin (TensorRT-LLM), position or hash (vLLM); or "
        "load, the most even division.",
    )
    expert_tp: Count = Field(
        1,
        description="GPUs that share each routed expert, neighbours with a slice of its inner "
        "width each: tensor parallelism inside expert parallelism.",
    )
    precision: NumberType | None = PRECISION
    gemm_type: ValueType | None = Field(
        None,
        description="Number type of the experts' GEMMs, where precision has another: also mxfp4 "
        "or nvfp4, FP4 values with a scale for 32 or 16, if rows are sent in that type (trtllm-alltoall).",
    )
    weight_type: ValueType | None = Field(
        None,
        description="FP4 type of the experts' weights, where the rows that they are multiplied "
        "with have another: mxfp4 beside fp8 or bf16, nvfp4 beside bf16.",
    )
    dispatch_type: ValueType | None = Field(
        None, description="Number type of rows to the experts, where precision has another."
    )
    combine_type: NumberType | None = Field(None, description="Number type of rows back, where precision has another.")
    shared_experts: SharedExperts = Field(
        "between",
        description="between: shared experts run before the dispatch. beside-dispatch: they share "
        "SMs and memory with it.",
    )
    interleave: Interleaving = Field(
        "off",
        description="Two micro-batches in turns, each of half the tokens: tbo (SGLang's two-batch "
        "overlap) or dbo (vLLM's dual-batch overlap). sbo: SGLang's single-batch "
        "overlap. With --pass training, a forward pass of the next step's batch beside the "
        "backward pass of this one's, in the order of DualPipe (dualpipe) or of Megatron-LM "
        "(megatron). off: stage after stage.",
    )
    launch: Launch | None = Field(
        None,
        description="eager (kernel by kernel) or graph (captured in CUDA graphs) [graph in decode "
        "if the scheme can be captured, else eager].",
    )
    stack: str | None = Field(
        None,
        description=f"{STACK}. practice: for each scheme, the stack that trains or serves with it "
        "[practice; bare where a machine's hosts or a stack's products are not known, or experts are left out].",
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
                f"layer {given!r}: possible are the position of an MoE layer (0 and more), several positions, or 'all'"
            )
            raise UserError(message)
        return found[0] if len(found) == 1 else found

    @field_validator("placement", mode="before")
    @classmethod
    def _known_placement(cls, given: Any) -> str:
        return placement_name(given)

    @property
    def pairs_passes(self) -> bool:
        """Tell whether a forward pass runs beside a backward pass."""
        return self.interleave in PAIRED

    @property
    def makes_one_graph(self) -> bool:
        """Tell whether the replay has one schedule, whatever the trace holds."""
        has_one_layer = isinstance(self.layer, int) and self.steps == 1
        is_chain = not (self.barrier or self.communication_only)
        return is_chain or (has_one_layer and self.direction != "training")
