"""Pangu Ultra MoE's exchange: tokens are gathered between nodes, rows sent to experts inside.

Between nodes every token goes to the GPU of its own index in every other node, whatever its
experts. That GPU then sends a row for each (token, expert) of its node to the expert's GPU, as an
all-to-all inside the node. The way back is the reverse: results return to the GPU that gathered the
token, which weighs them and adds them up, and the sums of all nodes are scattered back and added at
the owner. Redundant rows between nodes buy an all-to-all that never leaves a node, and exchanges
between nodes whose sizes are known beforehand.

Expert ids and gate weights are gathered like the tokens, so that the rows carry nothing but the id
of their expert. The host waits twice: for the splits of the all-to-all, and for the number of rows.
A node alone has the all-to-all and nothing else of it.

Backward, gradients of the sums are gathered and weighed before they go to the experts, and
gradients of the tokens are scattered, with those of the gate weights.

Between nodes a card carries T (nodes - 1) rows whatever the routing; a scheme that sends one row per
(token, node) carries the sum of n(t). With n nodes and uniform top-k over E experts n(t) is
(n - 1) (1 - C(E - E/n, k) / C(E, k)) in the mean, so that the gather is redundant only with many
nodes, few choices or choices that keep to groups. A row per (token, expert) is more from k = n on.

``chunks`` cuts a GPU's tokens in parts; those of one travel between nodes while rows of the part
before travel inside. The paper overlaps them across micro-batches (``--interleave``). Tokens that
mindformers adds so that no expert is without a row are not modelled.

Sources: arXiv 2505.04519 (Pangu Ultra MoE; hierarchical EP communication, adaptive pipe overlap);
mindspore-lab/mindformers 02ad951, ``MoEAlltoAllDeredundencyTokenDispatcher`` of
``parallel_core/training_graph/transformer/moe/token_dispatcher.py``, operator by operator.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.domains import Domains
from replay.model.work.capacity import CarriedLayer, with_equal_tokens
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.memory import cast_tokens, on_each
from replay.schemes.ep.nccl import FIFO_SOURCE, FLAGS_IN_DATA
from replay.schemes.ep.pangu.exchanges import fifo_bytes, held_sms
from replay.schemes.ep.pangu.layer import PanguLayer
from replay.schemes.ep.pangu.options import PanguOptions
from replay.schemes.ep.pangu.programs import ID_BYTES, WEIGHT_BYTES
from replay.schemes.ep.pangu.routes import Routes
from replay.schemes.ep.staged_schemes import StagedScheme

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Stages


FIFOS = {"inside": "inside nodes", "rail": "between nodes"}


class Pangu(StagedScheme):
    """All-gather between nodes, all-to-all inside; all-to-all inside, reduce-scatter between."""

    name = "pangu"
    summary = "Pangu Ultra MoE: all-gather between nodes, all-to-all inside them"
    source = "arXiv 2505.04519; mindformers token_dispatcher.py (alltoall_deredundency)"
    assumes = (
        "ranks with fewer tokens gather rows of nobody; an all-gather between nodes sends to all "
        "of them at once, a reduce-scatter likewise, and a kernel adds; no rows for experts "
        "without tokens (use_pad_tokens)"
    )
    wins = (
        "two nodes with many tokens against schemes that send a row per expert between nodes: a token crosses once, "
        "whatever its experts"
    )
    loses = (
        "one node, where nothing is gathered and its operators are a dozen kernels more; few tokens, by two waits; "
        "many nodes and few choices, by rows that nobody wants"
    )
    unacknowledged = FLAGS_IN_DATA
    traffic = "pair"
    network = "gather"
    full_nodes = "its all-gathers are between GPUs of one index"
    platform = ""
    overlap = "parts between nodes beside parts inside, if there are several"
    phases_separated = False
    validity = "measured by its authors on Ascend NPUs; on GPUs nobody has"
    candidates = MappingProxyType({"chunks": (1, 2, 4, 8), "channels": (0, 8, 16)})
    options: PanguOptions = PanguOptions()

    def carries(self, work: LayerWork) -> CarriedLayer:
        """Layer with equally many tokens on every rank."""
        return with_equal_tokens(work)

    def communication_sms(self, system: System) -> int | None:
        """One SM a channel of NCCL's, of both communicators where parts overlap; engines take none."""
        sms = held_sms(system, self.options, Domains(system.fabric, system.fabric.num_gpus))
        return sum(sms.values()) if self.options.chunks > 1 else max(sms.values(), default=0)

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """NCCL's FIFOs, what is gathered, and a tensor for each time that rows move."""
        work = self.carries(work).work
        domains = Domains(system.fabric, work.num_ranks)
        inside = Routes(work, domains, 1).whole.inside
        sent, got, owned = inside.sum(axis=1), inside.sum(axis=0), np.diff(work.tokens_of_rank)
        b_d, b_c, gathered = work.dispatch_row_bytes, work.combine_row_bytes, owned * domains.num
        slots = gathered * work.expert_ids.shape[1]
        fifos = [
            Buffer(f"FIFOs of NCCL, {FIFOS[stream]}", on_each(work, nbytes), True, FIFO_SOURCE)
            for stream, nbytes in fifo_bytes(system, self.options, domains).items()
        ]
        between = (
            Buffer("gathered tokens", gathered * b_d),
            Buffer("gathered ids and gate weights", slots * (ID_BYTES + WEIGHT_BYTES)),
        )
        return (
            *fifos,
            *cast_tokens(work),
            *(between if domains.num > 1 else ()),
            Buffer("permuted rows", sent * b_d),
            Buffer("received rows", got * b_d),
            Buffer("rows by expert", got * work.operand_row_bytes),
            Buffer("results by source", got * b_c),
            Buffer("returned rows", sent * b_c),
            Buffer("sums of the node", gathered * b_c),
        )

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add gathers, exchange inside, experts, exchange inside, scatter."""
        split = partial(self.split, machine)
        return PanguLayer(work, self.carries(work), machine, self.options, split).stages(start)
