"""Plan: the spread of a model over GPUs, and each one's part of a batch.

Attention and experts are spread differently over the same GPUs, as Megatron-LM folds them
(arXiv 2504.14960). A stage of the pipeline has ``tp * cp * dp`` GPUs. Attention slices its heads
over `tp` neighbours and sequences over `cp`; `dp` such groups have batches of their own. Routed
experts are spread over `ep` neighbours of the same GPUs, and there are ``tp * cp * dp / ep`` copies
of each.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from replay.errors import UserError, unknown, value_text
from replay.experiments.base.spec import Spec

Recompute = Literal["none", "selective", "full"]
"""What of a forward pass is done again in the backward pass, in place of kept: nothing; what costs
little beside the memory it saves (norms, activation functions, expansion of latent vectors, as
DeepSeek-V3 does it); or every layer from its input."""


MOST_GPUS = 1 << 20
"""GPUs of a plan, and no cost of them: what a mistyped number stops at."""
MOST_CHUNKS = 1 << 12
"""Likewise, chunks of a model."""


class ParallelPlan(Spec):
    """Sizes of a parallel plan.

    Raises
    ------
    UserError
        If a size does not exist, is not possible, or sizes do not fit together.
    """

    tp: int = Field(1, ge=1, description="GPUs that slice attention and dense layers.")
    cp: int = Field(1, ge=1, description="GPUs that slice a sequence.")
    pp: int = Field(1, ge=1, description="Stages of the pipeline.")
    vpp: int = Field(1, ge=1, description="Chunks of the model on each stage.")
    dp: int = Field(1, ge=1, description="Groups of tp x cp GPUs with batches of their own.")
    ep: int = Field(1, ge=1, description="GPUs that routed experts are spread over.")
    micro_batch: int = Field(1, ge=1, description="Sequences of a micro-batch.")
    micro_batches: int = Field(1, ge=1, description="Micro-batches of a step, per dp group.")
    recompute: Recompute = Field("none", description="none, selective or full.")
    mtp: int = Field(0, ge=0, description="Layers of multi-token prediction that are trained.")
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="Layers of each chunk, as 15x4+1; evenly if not given."
    )

    def __init__(self, **sizes: Any) -> None:
        try:
            super().__init__(**sizes)
        except UserError as error:
            message = f"plan: {error}"
            raise UserError(message) from None
        for what, count, most in (
            ("GPUs", self.num_gpus, MOST_GPUS),
            ("chunks (pp x vpp)", self.pp * self.vpp, MOST_CHUNKS),
        ):
            if count > most:
                message = f"plan: {count} {what}; at most {most} are possible"
                raise UserError(message)
        if self.per_stage % self.ep or self.peers % (self.tp * self.cp):
            fit = [n for n in range(1, self.per_stage + 1) if _fits(n, self)]
            message = (
                f"plan: ep {self.ep}, of the {self.per_stage} GPUs of a stage "
                f"(tp {self.tp} x cp {self.cp} x dp {self.dp}); possible are "
                f"{', '.join(map(str, fit))}"
            )
            raise UserError(message)

    @property
    def per_stage(self) -> int:
        """GPUs of a stage."""
        return self.tp * self.cp * self.dp

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole plan."""
        return self.per_stage * self.pp

    @property
    def peers(self) -> int:
        """GPUs of a stage that wait for each other within a layer: one group of experts."""
        return max(self.ep, self.tp * self.cp)

    @property
    def replicas(self) -> int:
        """Groups of `peers` in a stage, which differ in their tokens alone."""
        return self.per_stage // self.peers

    @property
    def expert_dp(self) -> int:
        """GPUs that have the same experts."""
        return self.per_stage // self.ep

    def tokens_per_gpu(self, sequence: int) -> int:
        """Tokens of a micro-batch whose rows a GPU owns."""
        return self.micro_batch * sequence // (self.tp * self.cp)

    def tokens_per_step(self, sequence: int) -> int:
        """Tokens of a step of the whole plan."""
        return self.micro_batches * self.micro_batch * sequence * self.dp


def parse(text: str) -> dict[str, Any]:
    """Read sizes of a plan.

    Parameters
    ----------
    text
        ``tp=8,pp=16,recompute=full``; layers of chunks as counts, or as repeated ones:
        ``layers=15x4+1`` are fifteen chunks of four layers and one of one.

    Returns
    -------
    What `ParallelPlan` takes, and which it checks.

    Raises
    ------
    UserError
        If a part is not ``name=value``, a size is unknown, given twice, or not a number.
    """
    sizes: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            message = f"plan: {value_text(part)} is not a size as tp=8; {value_text(text)}"
            raise UserError(message)
        if name not in ParallelPlan.model_fields:
            raise unknown("size of a plan", name, ParallelPlan.model_fields)
        if name in sizes:
            message = f"plan: {name} is given twice"
            raise UserError(message)
        if name == "recompute":
            sizes[name] = value
        elif name == "layers":
            sizes[name] = _counts(value)
        else:
            sizes[name] = _number(name, value)
    return sizes


def _counts(text: str) -> tuple[int, ...]:
    counts: list[int] = []
    for part in text.split("+"):
        times, repeated, each = part.partition("x")
        if not repeated:
            times, each = "1", part
        repeats = _number("layers", times)
        if repeats > MOST_CHUNKS - len(counts):
            message = f"plan: layers = {value_text(text)} has more than {MOST_CHUNKS} chunks"
            raise UserError(message)
        counts += [_number("layers", each)] * repeats
    return tuple(counts)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        possible = "chunks such as 15x4+1" if name == "layers" else "a whole number"
        message = f"plan: {name} = {value_text(text)}: expected {possible}"
        raise UserError(message)
    return int(text)


def _fits(ep: int, plan: ParallelPlan) -> bool:
    return plan.per_stage % ep == 0 and max(ep, plan.tp * plan.cp) % (plan.tp * plan.cp) == 0
