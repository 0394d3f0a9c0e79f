"""DeepEP, first version, normal kernels, inside an NVLink domain and between nodes of eight GPUs.

Traffic: every token travels once to each other GPU that has at least one of its experts, and once
back, however many of its experts that GPU has. With r(t) the number of those GPUs for token t, B_d
and B_c the bytes of a row out and back (`LayerWork.dispatch_row_bytes`, `combine_row_bytes`), and
In(g) the copies that GPU g receives of other GPUs' tokens, the payload of GPU g's port is

    dispatch: up B_d x sum of r(t) over g's tokens, down B_d x In(g)
    combine:  up B_c x In(g), down B_c x sum of r(t) over g's tokens

Between nodes a token goes once to each node that has one of its experts, to the GPU of the same
index, which forwards it; the way back is the reverse, with a sum at that GPU and one at the owner.

Here are the scheme's options, what it needs, and its stages; the kernels are in `intranode`,
`internode` and `internode_combine`, what they exchange before the rows in `notify` and
`internode_notify`, how it leaves a node in `transport`, `nvshmem_proxy` and `uccl`, the engine's kernels around them
in `stack`.

Kernels are compiled for domains of at most eight GPUs; on a larger one a result counts how many GPUs
are extrapolated.

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy`` and the legacy buffer: one copy per
(token, GPU); in the combine each GPU first adds the rows of its own experts, and the owner adds
what comes from the GPUs in FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.model.compute.casts import cast_before_dispatch, cast_received
from replay.model.compute.experts import separate_kernels
from replay.model.compute.row_tiles import padded_rows
from replay.model.compute.shared_experts import shared_before_wait
from replay.model.machine.domains import Domains
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep import memory
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.ep.deepep import (
    internode,
    internode_combine,
    internode_notify,
    intranode,
    notify,
    stack,
)
from replay.schemes.ep.deepep.buffers import VLLM_BYTES, rdma_ring_bytes, ring_bytes
from replay.schemes.ep.deepep.configs import NODES, Config, default_config, full_config
from replay.schemes.ep.deepep.crossings import Crossings, NormalKernel
from replay.schemes.ep.deepep.intranode import INDEX_BYTES, WEIGHT_BYTES
from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.deepep.notify import EXPERT_ID_BYTES
from replay.schemes.ep.deepep.nvshmem_proxy import ProxyTransport
from replay.schemes.ep.deepep.stack import STACKS
from replay.schemes.ep.deepep.transport import WarpTransport
from replay.schemes.ep.deepep.uccl import UcclTransport
from replay.schemes.ep.facts import LIBRARY_WEIGHTS, Buffer
from replay.schemes.ep.staged_schemes import ListedExchanges
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.kernel_lists import Engine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Stages

EXTRAPOLATED = "extrapolated: GPUs of the domain beyond the 8 that V1's kernels know"
DEFAULT_TRANSPORT = "warps"
TRANSPORTS = MappingProxyType({"warps": WarpTransport(), "proxy": ProxyTransport(), "uccl": UcclTransport()})
BARE = "bare"  # the stack that is nobody's
LISTED = ("deepseek",)  # stacks whose lists have both passes, see `ListedExchanges`
LEAST_BETWEEN = 4  # SMs: the notify kernel has blocks for three things


def _shipped_option(help: str) -> Any:
    return option(
        0,
        f"{help} 0 takes what DeepEP ships for the group size.",
        "deepseek-ai/DeepEP, the configurations it ships",
        unit="tokens",
    )


@dataclass(frozen=True)
class DeepEpOptions(Options):
    """Options of the normal kernels and of the experts' GEMMs behind them."""

    num_sms: int = option(
        24,
        "SMs of the dispatch kernel and of the combine kernel. Half of them send.",
        "default of DeepEP's published tables",
        least=2,
        multiple_of=2,
    )
    dispatch_chunk: int = _shipped_option("Tokens in a chunk of the dispatch.")
    combine_chunk: int = _shipped_option("Tokens in a chunk of the combine.")
    ring_tokens: int = _shipped_option("Tokens in a ring.")
    rdma_dispatch_chunk: int = _shipped_option(
        "Tokens that go to a node at once in the dispatch, where there are several nodes."
    )
    rdma_combine_chunk: int = _shipped_option("The same in the combine.")
    rdma_ring_tokens: int = _shipped_option("Tokens in a ring between nodes.")
    transport: str = option(
        DEFAULT_TRANSPORT,
        "Who posts what leaves a node. warps: the kernels themselves, through NVSHMEM's GPU-initiated verbs. proxy: "
        "NVSHMEM's thread of the host, where cards take no doorbells of GPUs, as on AWS's EFA. uccl: "
        "UCCL-EP's threads of the host, as built for AWS's EFA, which also add to the counters that the kernels wait "
        "for (`uccl`).",
        "deepseek-ai/DeepEP",
        choices=tuple(TRANSPORTS),
    )
    cached_layout: bool = option(
        False,
        "Whether layout and counts are known from before, as in a backward pass or with repeated "
        "routing. Then only the barriers remain.",
        "a layer whose routing is new",
    )
    stack: str = option(
        "vllm",
        "Whose kernels stand around DeepEP's and the grouped GEMMs; in practice its hosts launch "
        "them, too, and `--stack` of the same name has both. `schemes/ep/deepep/LAYER.md` lists them. sglang "
        "and vllm cast rows, pad each expert to DeepGEMM's 128 rows, and bring indices and scales "
        "along; vllm marks the padding, so that it is not multiplied. bare only casts, copies and "
        "adds rows, and pads nothing. deepgemm is what DeepGEMM's own benchmarks "
        "call DeepEP beside MegaMoE: no hosts, and no row brought to its expert. "
        "Gradients, which no engine knows, always take bare. deepseek has all kernels of a pair of "
        "layers, attention's and shared experts' included, as DeepSeek's own training launches "
        "them; only for a model of its kind under --interleave dualpipe.",
        "sgl-project/sglang and vllm-project/vllm; the quicker of the two but with few tokens",
        choices=(*STACKS, BARE, *LISTED),
    )


class DeepEp(ListedExchanges):
    """One copy per (token, GPU) through ring buffers; kernels one after the other."""

    name = "deepep"
    summary = "DeepEP V1 normal kernels: one copy per GPU through ring buffers"
    source = "deepseek-ai/DeepEP dd758ca, csrc/kernels/legacy/intranode.cu and internode.cu"
    assumes = (
        "GEMMs run on all SMs, after the dispatch kernel; V1's kernels inside a domain know at "
        "most 8 GPUs, so that a larger domain is an extrapolation, which the result counts; with "
        "transport=uccl a locked add takes what it takes one EPYC of Zen 4 ([host] locked_add_ns); "
        "transport=warps posts from the GPU on any card, though AWS's EFA takes no doorbells of GPUs"
    )
    wins = "many tokens and skew against all-to-alls, by one row per GPU and rings that bound what one GPU is sent"
    loses = (
        "few tokens: layout, two notify kernels with fences, a host that polls; on B200 its warps do not fill the links"
    )
    traffic = "copy"
    weight_types = LIBRARY_WEIGHTS
    network = "node"
    gemm_types = dispatch_types = frozenset({"bf16", "fp8"})  # DeepGEMM's, and the engines'
    combine_types = frozenset({"bf16"})  # SWITCH_TYPES
    validity = "2, 4 or 8 GPUs of a node; 2 to 20 nodes of 8 GPUs; a larger domain is an extrapolation"
    candidates = MappingProxyType({"num_sms": (12, 16, 20, 24, 32, 48)})
    unpadded = MappingProxyType({"stack": BARE})
    lists = LISTED
    options: DeepEpOptions = DeepEpOptions()

    def refuses(self, work: LayerWork) -> str:
        """Say what its stack has no kernels of, besides what any scheme says."""
        return super().refuses(work) or stack.no_gradients(self.options.stack, work)

    def refuses_on(self, work: LayerWork, system: System) -> str:
        """Say why the kernels have no code for the layer's nodes; empty if they have."""
        domains = Domains(system.fabric, work.num_ranks)
        if domains.num == 1:
            return ""
        if domains.size != NODE_GPUS or not domains.even:
            return (
                f"its kernels between nodes are compiled for whole nodes of {NODE_GPUS} GPUs; here "
                f"{work.num_ranks} ranks are on domains of {domains.size}"
            )
        if domains.num not in NODES:
            known = ", ".join(map(str, NODES))
            return f"its kernels are compiled for {known} nodes, not {domains.num}"
        if self.options.num_sms < LEAST_BETWEEN:
            return f"its kernels between nodes take {LEAST_BETWEEN} SMs at least (num_sms)"
        return ""

    def communication_sms(self, system: System) -> int | None:
        """SMs of either kernel."""
        return self.options.num_sms

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Rings, which stay; copies, a row for each expert of them, and their sums."""
        engine, copies = self._engine(work), work.matrix("copies").sum(axis=0)
        own, topk = memory.tokens(work), work.expert_ids.shape[1]
        domains = Domains(system.fabric, work.num_ranks)
        index = INDEX_BYTES if domains.num == 1 else internode.META_BYTES
        meta = index + topk * (EXPERT_ID_BYTES + WEIGHT_BYTES)
        rows = padded_rows(work, "plain" if engine is None else engine.layout)
        copied, expands = engine is STACKS["vllm"], engine is None or engine.expands
        return (
            *memory.cast_tokens(work),
            *self._rings(work, domains.num),
            Buffer("received rows", copies * (work.dispatch_row_bytes + meta)),
            self._places(work, domains),
            *memory.cast_received(work, copies),
            *((Buffer("rows by expert", rows * work.operand_row_bytes),) if expands else ()),
            *((Buffer("sums by GPU", copies * work.combine_row_bytes),) if expands else ()),
            *((Buffer("combined rows", own * work.combine_row_bytes),) if copied else ()),
        )

    def _rings(self, work: LayerWork, nodes: int) -> tuple[Buffer, ...]:
        """DeepEP's buffers: what its configurations need, or what the engine sets aside."""
        configs = self._configs(work.num_ranks, nodes)
        channels, hidden = self.options.num_sms // 2, work.shape.hidden
        ring = max(config.ring for config in configs)
        needed = {"rings": ring_bytes(channels, work.num_ranks, ring, hidden, nodes)}
        if nodes > 1:
            ring = max(config.rdma_ring for config in configs)
            needed["rings between nodes"] = rdma_ring_bytes(channels, nodes, ring, hidden)
        least = VLLM_BYTES if self._engine(work) is STACKS["vllm"] else 0
        return tuple(
            Buffer(name, memory.on_each(work, max(nbytes, least)), stays=True) for name, nbytes in needed.items()
        )

    def _places(self, work: LayerWork, domains: Domains) -> Buffer:
        """Place of each row in each ring, which the combine has to know."""
        own = memory.tokens(work)
        if domains.num == 1:
            places = own * work.num_ranks
        else:
            crossings = Crossings.of(work, domains, np.zeros(work.num_tokens, np.int64), 1, 1)
            forwarded = np.bincount(crossings.forwarder, minlength=work.num_ranks)
            places = own * domains.num + forwarded * NODE_GPUS
        return Buffer("places in rings", places * INDEX_BYTES)

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Outputs of the experts, in the engine's layout."""
        engine = self._engine(work)
        return memory.intermediates(
            work,
            padded_rows(work, "plain" if engine is None else engine.layout),
            quantises_apart=engine is STACKS["sglang"],
        )

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add the stack's kernels, dispatch, experts and combine."""
        if self.kernel_list:
            message = (
                f"option stack={self.kernel_list} of scheme {self.name!r} is of a pair of layers: "
                "--pass training --interleave dualpipe, and in a step --schedule dualpipe --stack "
                f"{self.kernel_list}"
            )
            raise LayerRefusedError(message)
        if machine.num_domains == 1 and self.options.transport != DEFAULT_TRANSPORT:
            message = (
                f"option transport={self.options.transport} of scheme {self.name!r} is of what leaves a node, and all "
                f"{work.num_ranks} GPUs of the experts are in one: leave it out"
            )
            raise LayerRefusedError(message)
        beyond = work.num_ranks - NODE_GPUS
        if beyond > 0 and machine.num_domains == 1:
            machine.notes.count(EXTRAPOLATED, machine.ranks, beyond)
        pool = machine.sms.for_kernels()
        engine = self._engine(work)
        if engine is None:
            return (yield from self._bare(work, machine, pool, start))
        shared = shared_before_wait(machine, work, self.split(machine, "num_sms"), start)
        cast = yield stack.run(engine, engine.before_dispatch, work, machine, start)
        received = yield self.dispatch(work, machine, cast)
        added = yield stack.experts(engine, work, machine, pool, shared(received))
        combined = yield self.combine(work, machine, added)
        return stack.run(engine, engine.after_combine, work, machine, combined)

    @property
    def transport(self) -> WarpTransport:
        """Transport between nodes."""
        return TRANSPORTS[self.options.transport]

    @property
    def kernel_list(self) -> str:
        """The stack, where it has a list of both passes."""
        return self.options.stack if self.options.stack in LISTED else ""

    def _engine(self, layer: LayerWork) -> Engine | None:
        """Kernels of the engine that runs the layer; None where none does."""
        return None if layer.is_backward else STACKS.get(self.options.stack)

    def _bare(self, work: LayerWork, machine: Machine, pool: Pools, start: Tasks) -> Stages:
        """Copies to the experts' rows and sums of them, and no kernel more."""
        operand, b_c = work.operand_row_bytes, work.combine_row_bytes
        copies = work.matrix("copies").sum(axis=0)
        rows = work.matrix("pairs").sum(axis=0)
        shared = shared_before_wait(machine, work, self.split(machine, "num_sms"), start)
        cast = yield cast_before_dispatch(machine, work, start)
        received = yield self.dispatch(work, machine, cast)
        received = cast_received(machine, work, copies, received)
        moved = MemoryTraffic(copies * operand, rows * operand, rows)
        permuted = machine.memory_kernel(
            Kind.PERMUTE, moved, received, moves="received copies, a row for each of their experts"
        )
        done = separate_kernels(machine, work, pool, shared(permuted))
        # The caller adds the rows of its own experts, so that one row per (token, GPU) returns.
        added = MemoryTraffic(rows * b_c, copies * b_c)
        reduced = yield machine.memory_kernel(Kind.UNPERMUTE, added, done, moves="every result, their sums by GPU")
        return (yield self.combine(work, machine, reduced))

    def dispatch(self, work: LayerWork, machine: Machine, start: Tasks) -> Ints:
        """Add layout (unless cached), notify and dispatch kernels: (rank,) marks of the end."""
        channels, between = self.options.num_sms // 2, machine.num_domains > 1
        if self.options.cached_layout or work.is_backward:
            if between:
                cleaned = internode_notify.cached_notify(machine, start, self.transport)
            else:
                cleaned = notify.cached_notify(machine, start)
            begun = machine.kernel(cleaned, "dispatch")
        else:
            laid_out = notify.layout(work, machine, start)
            if between:
                begun = internode_notify.notify(work, machine, channels, laid_out, self.transport)
            else:
                begun = notify.notify(work, machine, channels, laid_out)
        return self.dispatch_kernel(work, machine, begun)

    def dispatch_kernel(self, work: LayerWork, machine: Machine, begun: Tasks) -> Ints:
        """Add the dispatch kernel alone, once it runs: (rank,) marks of its end."""
        kernel = self._kernel(work, machine, begun, is_combine=False)
        return intranode.dispatch(kernel) if machine.num_domains == 1 else internode.dispatch(kernel, self.transport)

    def combine(self, work: LayerWork, machine: Machine, start: Tasks) -> Ints:
        """Add notify and combine kernels: (rank,) marks of the end."""
        channels = self.options.num_sms // 2
        if machine.num_domains == 1:
            ended = notify.combine_notify(work, machine, channels, start)
        else:
            tokens = memory.tokens(work)
            ended = internode_notify.combine_notify(tokens, channels, machine, start, self.transport)
        return self.combine_kernel(work, machine, machine.kernel(ended, "combine"))

    def combine_kernel(self, work: LayerWork, machine: Machine, begun: Tasks) -> Ints:
        """Add the combine kernel alone, once it runs: (rank,) marks of its end."""
        kernel = self._kernel(work, machine, begun, is_combine=True)
        if machine.num_domains == 1:
            return intranode.combine(kernel)
        return internode_combine.combine(kernel, self.transport)

    def _kernel(self, work: LayerWork, machine: Machine, begun: Tasks, *, is_combine: bool) -> NormalKernel:
        config = self._configs(work.num_ranks, machine.num_domains)[is_combine]
        sms = self.split(machine, "num_sms")
        return NormalKernel(work, machine, config, self.options.num_sms // 2, sms, begun)

    def _configs(self, num_ranks: int, nodes: int) -> tuple[Config, Config]:
        """Chunks and rings of the dispatch and of the combine."""
        given = self.options
        ring = given.ring_tokens, given.rdma_ring_tokens
        out = Config(given.dispatch_chunk, ring[0], given.rdma_dispatch_chunk, ring[1])
        back = Config(given.combine_chunk, ring[0], given.rdma_combine_chunk, ring[1])
        shipped = partial(default_config, num_ranks, nodes, transport=given.transport)
        dispatch = full_config(out, shipped(is_combine=False), nodes)
        combine = full_config(back, shipped(is_combine=True), nodes)
        if nodes > 1:
            return dispatch, combine
        room = max(dispatch.ring, combine.ring)
        return dispatch._replace(ring=room), combine._replace(ring=room)
