"""Settings of a replay that decide its chain: which layers of which batches, and in which order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from replay.chains.jitter import OFF
from replay.errors import UserError
from replay.model.machine.domains import Domains
from replay.model.work.batch import Batch, Phase, form_batch
from replay.model.work.placement import PER_STEP
from replay.model.work.precision import NumberType, Precision, ValueType

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.host import Launch
    from replay.model.work.replicas import ReplicaRule
    from tracegen import RoutingTrace

Direction = Literal["forward", "backward", "training"]
PASSES: dict[Direction, tuple[bool, ...]] = {
    "forward": (False,),
    "backward": (True,),
    "training": (False, True),
}
"""Whether each pass over the layers is the backward one."""

Interleaving = Literal["off", "tbo", "dbo", "sbo", "dualpipe", "megatron"]
PAIRED = ("dualpipe", "megatron")
"""Orders in which a forward pass runs beside a backward pass."""

SharedExperts = Literal["between", "beside-dispatch"]


@dataclass(frozen=True)
class ChainSettings:
    """Settings that chains heed; `replay.experiments.layer.spec.RunSpec` describes each."""

    ranks: int | None
    tokens_per_rank: int | None
    layer: int | tuple[int, ...] | Literal["all"]
    phase: Phase | None
    step: int
    steps: int
    direction: Direction
    barrier: bool
    communication_only: bool
    sample_nodes: int | None
    placement: str
    replicas: ReplicaRule
    expert_tp: int
    precision: NumberType | None
    gemm_type: ValueType | None
    weight_type: ValueType | None
    dispatch_type: ValueType | None
    combine_type: NumberType | None
    shared_experts: SharedExperts
    interleave: Interleaving
    launch: Launch | None
    stack: str | None
    jitter: str
    jitter_seed: int

    @classmethod
    def of(cls, spec: object) -> ChainSettings:
        """Take the settings from a spec that has them all by the same names."""
        return cls(**{one.name: getattr(spec, one.name) for one in dataclasses.fields(cls)})

    @property
    def passes(self) -> tuple[bool, ...]:
        """Passes over the layers: True for the backward one."""
        return PASSES[self.direction]

    @property
    def pairs_passes(self) -> bool:
        """Tell whether a forward pass runs beside a backward pass."""
        return self.interleave in PAIRED

    @property
    def all_steps(self) -> range:
        """Steps whose batches are taken; a forward pass beside a backward one is a step ahead."""
        return range(self.step, self.step + self.steps + self.pairs_passes)

    def makes_chain(self, num_layers: int) -> bool:
        """Tell whether so many layers, over all steps and passes, are replayed as one chain."""
        return self.pairs_passes or (num_layers > 1 and not self.replays_apart)

    @property
    def replays_apart(self) -> bool:
        """Tell whether each layer is replayed by itself; nothing lies between exchanges alone."""
        return self.barrier or self.communication_only

    def num_layers(self, trace: RoutingTrace) -> int:
        """Count layers over all steps and passes; raises as `positions` does."""
        return len(self.positions(trace)) * len(self.passes) * self.steps

    def positions(self, trace: RoutingTrace) -> list[int]:
        """Positions of the layers that are asked for, among the MoE layers of a trace.

        Raises
        ------
        UserError
            If there are none, or not these.
        """
        num_layers = trace.num_layers
        if self.layer == "all":
            if not num_layers:
                message = "the trace has no MoE layers; there is nothing to replay"
                raise UserError(message)
            return list(range(num_layers))
        positions = [self.layer] if isinstance(self.layer, int) else list(self.layer)
        for position in positions:
            if not 0 <= position < num_layers:
                last = num_layers - 1
                message = f"layer {position}: the trace has MoE layers 0..{last}, or 'all'"
                raise UserError(message)
        return positions

    def number_types(self, trace: RoutingTrace) -> Precision:
        """Number types: those asked for, else the model's."""
        return Precision(
            self.precision or trace.model_shape.default_precision,
            gemm=self.gemm_type,
            dispatch=self.dispatch_type,
            combine=self.combine_type,
            weights=self.weight_type,
        )

    def batch(self, trace: RoutingTrace, system: System, step: int) -> Batch:
        """Form the batch of a step, on ranks that the system has.

        Raises
        ------
        UserError
            If the system has too few GPUs, or the trace cannot give such a batch.
        """
        asked, there = trace.num_ranks or self.ranks or system.num_gpus, system.num_gpus
        if asked > there and self.ranks in (None, asked):  # before anything is made for them
            message = f"{asked} ranks were asked for; system {system.name!r} has {there} GPUs"
            raise UserError(message)
        return form_batch(
            trace,
            num_ranks=self.ranks,
            default_ranks=there,
            tokens_per_rank=self.tokens_per_rank,
            phase=self.phase,
            step=step,
        )

    def check_interleaved(self) -> None:
        """Refuse what has no place beside micro-batches in turns.

        Raises
        ------
        UserError
            Saying what.
        """
        if self.interleave == "off":
            return
        asked = {
            f"--pass {self.direction}: the lists are those of engines that serve": (
                self.direction != "forward" and not self.pairs_passes
            ),
            f"--pass {self.direction}: a forward pass runs beside a backward pass; --pass training": self.direction
            != "training"
            and self.pairs_passes,
            "--barrier: passes go on side by side from layer to layer": (self.barrier and self.pairs_passes),
            f"--shared-experts {self.shared_experts}: the lists say where these run": (
                self.shared_experts != "between"
            ),
            f"--jitter {self.jitter}: a GPU that is held up holds up both micro-batches": (
                self.jitter != OFF and not self.pairs_passes
            ),
            "--communication-only: micro-batches take turns at communication and experts": (self.communication_only),
            f"--placement {self.placement}: a plan's slots hold replicas for one batch": (
                self.placement.partition(":")[0] in PER_STEP
            ),
        }
        for what, is_asked in asked.items():
            if is_asked:
                message = f"--interleave {self.interleave} does not go with {what}"
                raise UserError(message)

    def check_nodes(self, system: System, num_ranks: int, *, is_chain: bool) -> None:
        """Refuse a sample of the nodes where it means nothing.

        Raises
        ------
        UserError
            Saying why, and what there is.
        """
        if self.sample_nodes is None:
            return
        domains, asked = Domains(system.fabric, num_ranks), f"--sample-nodes {self.sample_nodes}"
        message, values = "", system.describe()
        if domains.num == 1:
            message = f"{asked}: all {num_ranks} GPUs are in one NVLink domain of {domains.size}"
        elif not domains.even:
            message = f"{asked}: {num_ranks} GPUs are no whole nodes of {domains.size}"
        elif values.get("network.oversubscription", 1) > 1 or values.get("fabric.slow"):
            message = (
                f"{asked}: nodes have to be alike and not in each other's way; leave out "
                "network.oversubscription and fabric.slow, or replay all nodes"
            )
        elif domains.size % self.expert_tp:
            message = (
                f"{asked}: nodes have to be alike; {self.expert_tp} GPUs that share an expert do "
                f"not divide the {domains.size} of a node"
            )
        elif is_chain:
            message = (
                f"{asked}: the busiest nodes differ from layer to layer, so that a chain has no "
                "others to go on with; --layer N replays one, --barrier replays layers by "
                "themselves"
            )
        elif self.interleave != "off":
            message = f"{asked} and --interleave {self.interleave}: nodes are sampled of whole batches"
        elif self.jitter != OFF:
            given = f"{asked} and --jitter {self.jitter}"
            message = f"{given}: nodes that are not replayed would never be late; leave out one of them"
        if message:
            raise UserError(message)
