"""TensorRT-LLM's all-to-all over NVLink, as its two strategies have it.

With n ranks, r(t) remote GPUs of token t and In(g) foreign tokens for GPU g's experts, the payload
of GPU g's port is, of either strategy,

    dispatch: up B_d x sum of r(t) over g's tokens, down B_d x In(g)
    combine:  up B_c x In(g), down B_c x sum of r(t) over g's tokens

Rows are quantised before they travel, and multiplied as they come. Beside a row go the ids and
gate weights of all its experts. At a GPU experts add up what they make of a row, so that one comes
back.

*One-sided* (`replay.schemes.ep.trtllm.one_sided`, which is tried first): the GPU of a token puts it
into peers' memory, and gets the results from there. *Two-sided*
(`replay.schemes.ep.trtllm.two_sided`): half of the SMs send through queues in the receiver's
memory, and receive from these.

Not modelled: queues that are full (1 MB for each peer and channel), results in FP8 or FP4
(``use_low_precision_combine``), loads of experts that are gathered (``eplb``), masks of GPUs that
failed.

Source: NVIDIA/TensorRT-LLM. One-sided: ``cpp/tensorrt_llm/kernels/communicationKernels/
moeAlltoAllKernels.cu`` at 01f0021. Two-sided: ``cpp/tensorrt_llm/kernels/fusedMoeCommKernels.cu``
and ``moePrepareKernels.cu`` at 004d78b. Who calls them: ``tensorrt_llm/_torch/modules/fused_moe/
communication``: ``nvlink_one_sided.py`` at 010d713, ``nvlink_two_sided.py`` at 0c8de69,
``communication_factory.py`` at 03c36d6.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_before_dispatch
from replay.model.compute.experts import separate_kernels
from replay.model.compute.list_rows import ListedPart
from replay.model.compute.shared_experts import shared_kernels
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.model.work.precision import FP4_TYPES
from replay.model.work.stacks import ListOption
from replay.schemes.ep import memory
from replay.schemes.ep.facts import FORWARD, LIBRARY_WEIGHTS
from replay.schemes.ep.staged_schemes import StagedScheme
from replay.schemes.ep.trtllm import one_sided, two_sided
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.facts import Buffer
    from replay.schemes.ep.staged_schemes import Stages

COMPILED = (1, 2, 4, 6, 8, 10, 16)  # experts of a token, SWITCH_TOP_K


@dataclass(frozen=True)
class TrtLlmOptions(Options):
    """Options of the exchange."""

    side: str = option(
        "one",
        "Who moves rows. one: the GPU of the token, which puts rows into peers' memory and gets "
        "results from there. two: sender and receiver, through a queue.",
        "communication_factory.py at 03c36d6: NVLinkOneSided is tried first, then NVLinkTwoSided",
        choices=("one", "two"),
    )
    payload_in_workspace: bool = option(
        True,
        "One-sided: whether experts write their sums where peers read them; a kernel copies them there if not.",
        "get_combine_payload_tensor_in_workspace of nvlink_one_sided.py at 010d713",
    )


class TrtLlmAllToAll(StagedScheme):
    """Rows put once to each GPU, or sent through a queue there; one sum back."""

    name = "trtllm-alltoall"
    summary = "TensorRT-LLM's NVLink all-to-all, one-sided or through queues"
    source = "NVIDIA/TensorRT-LLM 01f0021 moeAlltoAllKernels.cu, 004d78b fusedMoeCommKernels.cu"
    assumes = (
        "all GPUs leave room for as many tokens as the one with most; queues have room; experts "
        "are CUTLASS's, whose kernels expand rows and add results up; loads of experts are not "
        "gathered"
    )
    wins = "few tokens, by one row per GPU without a meeting or a wait for counts; many, level with `deepep-v2`"
    loses = (
        "skew: places are a token's, and nobody holds back what one GPU is sent; many tokens on many GPUs, by a fence "
        "of each block of the combine"
    )
    spares = MappingProxyType(
        {
            "host waits": "buffers have room for the worst case",
            "copies in memory": "rows are stored to where the experts' kernel expands them",
        }
    )
    traffic = "copy"
    phases_separated = False
    gemm_types = dispatch_types = frozenset({"bf16", "fp8"}) | FP4_TYPES
    weight_types = LIBRARY_WEIGHTS
    combine_types = frozenset({"bf16"})
    passes = FORWARD
    interleaves = frozenset()
    most_ranks = 128  # MAX_RANKS
    even_experts = True
    validity = "GB200 NVL72, whose GPUs reach one another's memory; one NVLink domain"
    options: TrtLlmOptions = TrtLlmOptions()

    def refuses(self, work: LayerWork) -> str:
        """Say if rows need a cast before GEMMs, or no kernel takes so many experts per token."""
        types, topk = work.precision, work.expert_ids.shape[1]
        if reason := super().refuses(work):
            return reason
        if types.dispatch != types.gemm:
            return f"its {types.gemm} GEMMs read rows as they come, which are {types.dispatch}"
        if self._one_sided and topk not in COMPILED:
            return f"its kernels take {', '.join(map(str, COMPILED))} experts per token, not {topk}"
        if not self._one_sided and topk > two_sided.MOST_TOPK:
            return f"its kernels take {two_sided.MOST_TOPK} experts per token at most, not {topk}"
        return ""

    @property
    def unacknowledged(self) -> Mapping[str, str]:  # type: ignore[override]  # an option decides
        """Reason for the queues: the lines of a row carry their step."""
        lines = "lines of a row carry the step of its queue"
        return {} if self._one_sided else {"dispatch": lines, "combine": lines}

    @property
    def _one_sided(self) -> bool:
        return self.options.side == "one"

    def communication_sms(self, system: System) -> int | None:
        """All, or two for each channel; channels are counted for the most ranks of a domain."""
        if self._one_sided:
            return system.sm.num_sms
        ranks = min(system.fabric.gpus_per_domain, self.most_ranks)
        return two_sided.QueueGrid.of(ranks, system.sm.num_sms).num_sms

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """The workspace that peers reach, and rows by expert."""
        found = one_sided.buffers(work) if self._one_sided else two_sided.buffers(work, system.sm.num_sms)
        return (*memory.cast_tokens(work), *found)

    @property
    def list_options(self) -> Mapping[str, ListOption]:
        """Mover of rows and place of results; experts add them up in a kernel of their own."""
        is_there = self.options.payload_in_workspace
        return {
            "dispatcher": ListOption(f"{self.options.side}-sided", "its option side"),
            "payload_in_workspace": ListOption(is_there, "its option payload_in_workspace"),
            "fused_sum": ListOption(False, "its experts, whose rows a kernel of its own adds up"),
        }

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add quantisation, dispatch, experts and combine."""
        cast = cast_before_dispatch(machine, work, start)
        grid = two_sided.QueueGrid.of(machine.num_ranks, machine.sms.count)
        held = machine.sms.count if self._one_sided else grid.num_sms
        sms = self.split(machine, blocks=held)
        if self._one_sided:
            channels = sms.channels("trtllm", held)
            arrived = yield one_sided.dispatch(work, machine, channels, (yield cast))
        else:
            known = yield two_sided.prepare(work, machine, cast)
            arrived = yield two_sided.dispatch(work, machine, sms, grid, known)
        arrived = one_sided.sanitise(work, machine, arrived)
        arrived = shared_kernels(machine, work, sms, start, arrived)
        done = self._experts(work, machine, arrived)
        if self._one_sided:
            copies = not self.options.payload_in_workspace
            ready = yield one_sided.make_ready(work, machine, done, copies=copies)
            ends = yield one_sided.combine(work, machine, channels, ready)
        else:
            ready = yield two_sided.clear_choices(work, machine, done)
            returned = yield two_sided.combine(work, machine, sms, grid, ready)
            ends = two_sided.add_up(work, machine, returned)
        machine.notes.follow("combined", np.arange(work.num_tokens), ends[work.source_rank])
        return ends

    def _experts(self, work: LayerWork, machine: Machine, arrived: Tasks) -> Ints:
        """Expand rows to their experts, multiply, add up the results of each row."""
        copies = work.matrix("copies").sum(axis=0)
        rows, row = memory.received_rows(work), work.operand_row_bytes
        part = ListedPart(machine, work, one_sided.LISTED, "experts")
        expand = MemoryTraffic(copies * row, rows * row, rows)
        expanded = part.launch("rows, a copy for each expert", arrived, expand, Kind.PERMUTE)
        every_sm = machine.sms.pool("sm", machine.sms.count)
        done = separate_kernels(machine, work, every_sm, expanded)
        # A block for each place, whether a token is there or not.
        places = memory.on_each(work, int(memory.tokens(work).max(initial=0)) * work.num_ranks)
        summed = MemoryTraffic(rows * work.result_row_bytes, places * work.combine_row_bytes)
        return part.launch("sum of a token's rows", done, summed, Kind.UNPERMUTE)
