"""DeepEP, second version ("elastic"): direct inside an NVLink domain, hybrid between several.

Traffic as in the first version, one row per (token, GPU) each way. What has changed: rows are
pushed by TMA straight into a slot at the receiver, which has room for all that may come, so that no
ring gives credits and no SM receives; the two kernels begin and end with a barrier; counting is
part of the dispatch; few SMs push, as many as a formula says; and an epilogue on all SMs copies or
adds up what came. With ``do_expand`` it copies rows to their experts, and the combine adds up those
of a row before it sends it, so that no kernel of the caller permutes. Between NVLink domains a row
goes once to each, in hybrid mode (`elastic_hybrid`).

An SM pushes rows at the rate of the first version's senders, so that with few SMs the replay is too
fast (``moereplay validate deepep_v2``). A port loses no more than by alternating between peers
(``link.fan_out_efficiency``): with what low-latency kernels lose, eight H200 could not have the rates
over NVLink of awslabs/awsome-distributed-ai pull request 1234.

Source: deepseek-ai/DeepEP, ``deep_ep/buffers/elastic.py``; kernels in `elastic_kernels`, the number
of SMs in `elastic_sms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from replay.errors import UserError
from replay.model.compute.casts import cast_before_dispatch, cast_received
from replay.model.compute.experts import separate_kernels
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.compute.row_tiles import CONTIGUOUS_ROWS, padded_rows
from replay.model.compute.shared_experts import shared_before_wait
from replay.model.machine.domains import Domains
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep.deepep import elastic_hybrid, elastic_kernels, stack
from replay.schemes.ep.deepep.elastic_kernels import SlotSizes
from replay.schemes.ep.deepep.elastic_sms import LEAST, automatic_sms
from replay.schemes.ep.deepep.normal import BARE
from replay.schemes.ep.deepep.stack import COMPARISON, DEEPGEMM, STACKS, SWIGLU, VLLM
from replay.schemes.ep.facts import LIBRARY_WEIGHTS, Buffer
from replay.schemes.ep.staged_schemes import StagedScheme
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.kernel_lists import Engine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Interleave, Stages

BUFFER_ALIGNMENT = 2 << 20  # of the symmetric buffer
MOST_NODES, MOST_GPUS = 32, 64  # lanes of a warp, and bits of its masks

EXPANDED = VLLM.model_copy(
    update={
        "source": "deepseek-ai/DeepGEMM, contiguous layout by prefix sums",
        "before_experts": (),
        "after_experts": (),
        "after_combine": (),
    }
)
"""What stands around the kernels where their output is what the GEMMs read."""
COMPARED = EXPANDED.model_copy(
    update={
        "source": DEEPGEMM.source,
        "before_dispatch": (),
        "between": (DEEPGEMM.between[0].model_copy(update={"reads": SWIGLU.reads, "writes": SWIGLU.writes}),),
    }
)
"""The same in DeepGEMM's own comparison: rows cast before, and the host waits for no counts.

``run_baseline`` of ``tests/test_mega_moe.py`` (pull request 316, at 9fd9460). On Hopper, where
scales are asked for by row, its test orders them for each GEMM; that is left out.
"""


@dataclass(frozen=True)
class ElasticOptions(Options):
    """Arguments of ``ElasticBuffer.dispatch``, and the stack around it."""

    num_sms: int = option(
        0,
        "SMs of the dispatch kernel and of the combine kernel. 0 takes as many as the library's "
        "formula says for the number of GPUs, their links and network cards, at least 4.",
        "num_sms of ElasticBuffer.dispatch, 0 by default",
        multiple_of=2,
    )
    overlap: bool = option(
        True,
        "Whether computation is to run beside the kernels; if not, the formula gives at least 64 SMs.",
        "prefer_overlap_with_compute of ElasticBuffer, on by default",
    )
    do_expand: bool = option(
        True,
        "Whether received rows are laid out by expert, a row for each of a token's experts on the "
        "GPU, as DeepGEMM reads them, and added up by the combine. If not, the kernels of `stack` "
        "do both.",
        "vLLM's prefill (deepep_v2.py) and rtp-llm; the library's own default is off",
    )
    expert_alignment: int = option(
        CONTIGUOUS_ROWS,
        "Rows that each expert's part of the expanded layout is padded to, 128 or 1. Padding is "
        "neither written nor multiplied, but the activation goes over it.",
        "DeepGEMM's contiguous layout",
        least=1,
        unit="rows",
    )
    cpu_sync: bool = option(
        True,
        "Whether the host waits for the counts of received rows, to size the output. If not, the "
        "output has room for the worst case, and a CUDA graph can hold the layer.",
        "do_cpu_sync of ElasticBuffer.dispatch, on by default",
    )
    cached_layout: bool = option(
        False,
        "Whether slots and counts are known from before, as in a backward pass or with repeated routing.",
        "a layer whose routing is new",
    )
    allow_hybrid_mode: bool = option(
        True,
        "Whether rows for other NVLink domains go once to each, to the GPU of the same index, which "
        "forwards them. The library's direct mode between domains is not modelled.",
        "allow_hybrid_mode of ElasticBuffer, on by default",
    )
    stack: str = option(
        "vllm",
        "Whose kernels copy rows to their experts and add them up where `do_expand` is off; see "
        "`stack` of scheme deepep. deepgemm is DeepGEMM's own comparison, with `do_expand`: rows "
        "are cast before it begins, and the host waits for no counts.",
        "as of scheme deepep",
        choices=(*STACKS, BARE),
    )

    def check(self) -> None:
        """Refuse numbers that the code does not take."""
        if 0 < self.num_sms < LEAST:
            message = f"option num_sms={self.num_sms} of scheme 'deepep-v2': expected 0 or at least {LEAST}"
            raise UserError(message)
        if self.stack == COMPARISON and not (self.do_expand and self.expert_alignment > 1):
            message = (
                "option stack=deepgemm of scheme 'deepep-v2': DeepGEMM's own comparison has "
                f"do_expand=true and expert_alignment={CONTIGUOUS_ROWS}"
            )
            raise UserError(message)
        if self.expert_alignment not in (1, CONTIGUOUS_ROWS):
            message = (
                f"option expert_alignment={self.expert_alignment} of scheme 'deepep-v2': must be 1 or {CONTIGUOUS_ROWS}"
            )
            raise UserError(message)


class ElasticDeepEp(StagedScheme):
    """One row per (token, GPU) pushed into its slot between two barriers; epilogues on all SMs."""

    name = "deepep-v2"
    summary = "DeepEP V2: rows pushed by TMA into slots, SMs by formula, epilogues"
    source = "deepseek-ai/DeepEP, deep_ep/buffers/elastic.py; its kernels (0297fc8, hybrid dd758ca)"
    assumes = (
        "an SM pushes rows as fast as those of other kernels; the release of the last barrier "
        "costs an acknowledgement; GEMMs run on all SMs, behind the epilogue"
    )
    wins = (
        "many tokens and skew among kernels that follow one another: no rings, no SMs that receive, no permute of the "
        "caller"
    )
    loses = (
        "few tokens, by barriers at both ends of either kernel and the wait for counts; with `do_expand` off most of "
        "its gain is gone"
    )
    spares = MappingProxyType(
        {
            "copies in memory": "rows are stored to slots, which the epilogue reads",
        }
    )
    traffic = "copy"
    weight_types = LIBRARY_WEIGHTS
    dispatch_types = frozenset({"bf16", "fp8"})
    combine_types = frozenset({"bf16"})
    network = "node"
    full_nodes = "rows go to the GPU of the same index in others"
    most_ranks = 1024
    validity = "one NVLink domain, or several in hybrid mode"
    candidates = MappingProxyType({"num_sms": (0, 4, 8, 16, 24, 32, 64)})
    unpadded = MappingProxyType({"expert_alignment": 1})
    options: ElasticOptions = ElasticOptions()

    def refuses(self, work: LayerWork) -> str:
        """Say what its stack has no kernels of, besides what any scheme says."""
        return super().refuses(work) or stack.no_gradients(self.options.stack, work)

    def refuses_on(self, work: LayerWork, system: System) -> str:
        """Say why it has no code for the layer's domains; empty if it has."""
        domains = Domains(system.fabric, work.num_ranks)
        if domains.num == 1:
            return super().refuses_on(work, system)
        if not self.options.allow_hybrid_mode:
            return "between NVLink domains its hybrid mode is modelled alone (allow_hybrid_mode)"
        if domains.num > MOST_NODES or domains.size > MOST_GPUS:
            return (
                f"its hybrid kernels take {MOST_NODES} NVLink domains of {MOST_GPUS} GPUs at most, "
                f"not {domains.num} of {domains.size}"
            )
        return super().refuses_on(work, system)

    def communication_sms(self, system: System) -> int | None:
        """SMs of the option; None for those of the formula, which depend on the links."""
        return self.options.num_sms or None

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """The symmetric buffer, which both kernels use, and the rows for the experts."""
        slots, n = SlotSizes.of(work), work.num_ranks
        most = int(np.diff(work.tokens_of_rank).max(initial=0))
        # Dispatch: a slot for each token of each GPU. Combine: one for each GPU that answers.
        domains = Domains(system.fabric, n)
        if domains.num == 1:
            needed = most * max(n * slots.out, min(n, slots.topk) * slots.back)
        else:
            needed = elastic_hybrid.buffer_bytes(most, domains.num, domains.size, slots.topk, slots.out, slots.back)
        symmetric = -(-needed // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
        layout = self._layout if self.options.do_expand else "plain"
        rows = padded_rows(work, layout) if self.options.do_expand else work.matrix("copies").sum(axis=0)
        return (
            Buffer("symmetric buffer", np.full(n, symmetric, np.int64), stays=True),
            Buffer("received rows", rows * work.dispatch_row_bytes),
        )

    def interleave(self, kind: Interleave) -> Self:
        """The scheme with `overlap`, which leaves SMs to others."""
        assert kind in self.interleaves
        return self.with_options({"overlap": True})

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add cast, dispatch, epilogue, experts, combine and epilogue."""
        options, engine, num_sms = self.options, self._engine(work), self._num_sms(work, machine)
        split = self.split(machine, num_sms=num_sms)
        sms = split.channels("elastic", num_sms)
        shared = shared_before_wait(machine, work, split, start)
        if engine is None:
            cast = yield cast_before_dispatch(machine, work, start)
        else:
            cast = yield stack.run(engine, engine.before_dispatch, work, machine, start)
        received = yield elastic_kernels.dispatch(
            work,
            machine,
            sms,
            cast,
            is_cached=options.cached_layout or work.is_backward,
            expands=options.do_expand,
            host_waits=options.cpu_sync and engine is not COMPARED,
            overlaps=options.overlap,
        )
        done = yield self._experts(work, machine, engine, shared(received))
        combined = elastic_kernels.combine(
            work, machine, sms, done, expands=options.do_expand, overlaps=options.overlap
        )
        combined = yield combined
        if engine is None:
            return combined
        return stack.run(engine, engine.after_combine, work, machine, combined)

    def _experts(self, work: LayerWork, machine: Machine, engine: Engine | None, after: Tasks) -> Tasks:
        """Run what stands between epilogue and combine: (rank,) tasks of its end."""
        pool = machine.sms.for_kernels()
        copies, pairs = (work.matrix(what).sum(axis=0) for what in ("copies", "pairs"))
        if engine is not None and not self.options.do_expand:
            return stack.experts(engine, work, machine, pool, after)
        if self.options.do_expand:
            operands = cast_received(machine, work, pairs, after)
            if engine is None:
                return separate_kernels(machine, work, pool, operands, layout=self._layout)
            first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
            done = gemm_kernel(machine, work, first, pool, operands, layout=self._layout).end
            done = stack.run(engine, engine.between, work, machine, done)
            return gemm_kernel(machine, work, second, pool, done, layout=self._layout).end
        operands = cast_received(machine, work, copies, after)
        row, back = work.operand_row_bytes, work.combine_row_bytes
        moved = MemoryTraffic(copies * row, pairs * row, pairs)
        permuted = machine.memory_kernel(Kind.PERMUTE, moved, operands)
        done = separate_kernels(machine, work, pool, permuted)
        added = MemoryTraffic(pairs * back, copies * back)
        return machine.memory_kernel(Kind.UNPERMUTE, added, done)

    @property
    def _layout(self) -> str:
        """Layout of the expanded rows."""
        return "skipped" if self.options.expert_alignment > 1 else "plain"

    def _engine(self, layer: LayerWork) -> Engine | None:
        """Kernels around the library's; None where nothing but casts, copies and sums is known."""
        types = {layer.precision.gemm, layer.precision.dispatch}
        if layer.is_backward or "fp32" in types:
            return None
        if self.options.do_expand:
            padded = COMPARED if self.options.stack == COMPARISON else EXPANDED
            return padded if self.options.expert_alignment > 1 else None
        return None if self.options.stack == BARE else STACKS[self.options.stack]

    def stream_sms(self, work: LayerWork, system: System) -> int:
        """SMs of the option, or of the formula."""
        nodes = Domains(system.fabric, work.num_ranks).num
        card = system.fabric.network.card_GB_per_s
        return self._automatic(work, system.sm.num_sms, system.link.line_GB_per_s, nodes, card)

    def _num_sms(self, work: LayerWork, machine: Machine) -> int:
        """SMs of either kernel."""
        links, card = machine.transfers.line_GB_per_s, machine.transfers.card_GB_per_s
        return self._automatic(work, machine.sms.count, links, machine.num_domains, card)

    def _automatic(self, work: LayerWork, num_sms: int, line_GB_per_s: float, nodes: int, card_GB_per_s: float) -> int:
        each = max((len(local) for local in work.experts_of_rank), default=0) or 1
        topk = min(work.expert_ids.shape[1], each * work.num_ranks)
        return self.options.num_sms or automatic_sms(
            num_sms,
            line_GB_per_s,
            work.num_ranks,
            each * work.num_ranks,
            topk,
            self.options.overlap,
            num_nodes=nodes,
            card_GB_per_s=card_GB_per_s,
        )
