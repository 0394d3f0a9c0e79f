"""DeepEP's low-latency kernels.

One row per (token, expert) straight into a fixed slot at the expert's GPU, then a count per expert
as flag; one kernel whose SMs first send, meet, and then receive. Rows to another node go through
the NICs.

Source: deepseek-ai/DeepEP, ``csrc/kernels/legacy/internode_ll.cu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import COMBINE, DISPATCH, Kind
from replay.schemes.deepep.messages import Messages, blocks_of_tokens, transfer

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine, Time
    from replay.work.layer import LayerWork

HEADER_BYTES = 16
CAST_NS = 2400  # a block casts a token to FP8 and begins its rows; 6144/2/8 on 8 SMs
ADD_NS = 600  # a block adds a token's rows; the same shape's combine
COUNT_NS = 10  # of each expert: its flag is written, and polled; fitted with the two above
MOST_BLOCKS = 64  # blocks of tokens, per rank
ROW_UNROLL = 7  # loads of a lane in flight, low latency (UNROLLED_WARP_COPY)


def _num_sms(num_experts: int, available: int) -> int:
    """SMs of a low-latency kernel: a block serves as many experts as the GPU needs it to."""
    groups = -(-num_experts // available)
    return -(-num_experts // groups)


def low_latency(work: LayerWork, phase: str, machine: Machine, start: Ints) -> Ints:
    """One kernel: send, meet, flags, receive."""
    kinds = DISPATCH if phase == "dispatch" else COMBINE
    costs, n = machine.costs, work.num_ranks
    block = blocks_of_tokens(work, MOST_BLOCKS)
    messages = Messages(work, work.pair_token, work.pair_rank, block, 1)
    row_bytes = work.dispatch_row_bytes + HEADER_BYTES
    src, dst = messages.owner, messages.other
    if phase == "combine":
        row_bytes, src, dst = work.combine_row_bytes, dst, src
    pool = machine.sms.pool(f"ll-{phase}", _num_sms(work.num_experts, machine.sms.count))
    begun = machine.kernel(start)
    # A warp copies a row; the first ones leave when it is through.
    copying = costs.warp_copy(row_bytes, unroll=ROW_UNROLL)
    ready = machine.delay(kinds.send, copying, begun)[src]
    tokens = messages.tokens
    owner = np.arange(len(tokens)) // messages.num_blocks
    if phase == "dispatch":
        # One block a token at a time; a block of tokens is spread over all SMs.
        cast = _by_tokens(machine, pool, owner, tokens, costs.ns(CAST_NS), kinds.send, begun[owner])
        ready = cast[src * messages.num_blocks + messages.block]
    landed = transfer(machine, kinds, src, dst, row_bytes, messages.rows, ready, scattered=True)
    met = machine.delay(kinds.sync, costs.grid_barrier(), machine.gather(ready, src, begun))
    counted = machine.delay(kinds.sync, costs.ns(COUNT_NS) * work.num_experts, met)
    arrived = machine.gather(landed, dst, begun)
    # Flags of all ranks to all ranks, behind the rows.
    peer = np.repeat(machine.ranks, n), np.tile(machine.ranks, n)
    flags = machine.delay(kinds.sync, costs.flag(), counted[peer[0]], peer[1])
    flagged = machine.gather(flags, peer[1], arrived)
    if phase == "dispatch":
        copied = machine.stream(kinds.receive, 2 * messages.rows * row_bytes, dst, landed)
        return machine.delay(kinds.receive, copying, machine.gather(copied, dst, flagged))
    # All blocks meet once more before they add: a token's rows come behind several flags.
    flagged = machine.delay(kinds.sync, costs.grid_barrier(), flagged)
    added = _by_tokens(
        machine, pool, owner, tokens, costs.ns(ADD_NS), kinds.receive, flagged[owner]
    )
    return machine.delay(kinds.sync, costs.memory_load(), machine.gather(added, owner, flagged))


def _by_tokens(
    machine: Machine, pool: Ints, owner: Ints, tokens: Ints, each: Time, kind: Kind, after: Ints
) -> Ints:
    """Tokens of each block on the SMs of `pool`, a token on one SM: (block,) marks."""
    which = np.repeat(np.arange(len(tokens)), tokens)
    done = machine.serve(pool[owner[which]], each, kind=kind, rank=owner[which], after=after[which])
    marks = machine.mark(owner, after)
    machine.graph.edges(done, marks[which])
    return marks
