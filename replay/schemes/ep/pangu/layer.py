"""One layer under Pangu's exchange, stage by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_before_dispatch, cast_received
from replay.model.compute.experts import separate_kernels
from replay.model.compute.shared_experts import shared_before_wait
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import places
from replay.schemes.ep.pangu import programs
from replay.schemes.ep.pangu.exchanges import Exchanges
from replay.schemes.ep.pangu.programs import ID_BYTES, SORT_BYTES, WEIGHT_BYTES
from replay.schemes.ep.pangu.routes import Routes, TokenPart

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.capacity import CarriedLayer
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.pangu.options import PanguOptions
    from replay.schemes.ep.staged_schemes import Stages


class PanguLayer:
    """One layer being described.

    Parameters
    ----------
    layer, carried
        The layer, and the one with equally many tokens on every rank.
    split
        Declares SMs that kernels hold, by the name of what gives their number.
    """

    def __init__(
        self,
        layer: LayerWork,
        carried: CarriedLayer,
        machine: Machine,
        options: PanguOptions,
        split: Callable[..., Split],
    ) -> None:
        self._layer, self._machine, self._work = layer, machine, carried.work
        self._options = options
        self._exchanges = Exchanges(machine, options, split)
        self._routes = Routes(carried.work, machine.domains, options.chunks)
        self._parts, self._whole = self._routes.parts, self._routes.whole
        self._is_hierarchical = machine.domains.num > 1
        self._has_peers = machine.num_ranks > machine.domains.num
        # Numbers of the layer's tokens, -1 for those of nobody.
        self._number = np.full(carried.work.num_tokens, -1, np.int64)
        self._number[carried.token] = np.arange(layer.num_tokens)
        owned = self._whole.tokens
        self._gathered = np.full(machine.num_ranks, owned * machine.domains.num)
        self._slots = self._gathered * carried.work.expert_ids.shape[1]

    def stages(self, start: Tasks) -> Stages:
        """Give what ends each stage."""
        layer, work, machine = self._layer, self._work, self._machine
        shared = shared_before_wait(machine, layer, self._exchanges.splits["inside"], start)
        got = self._whole.inside.sum(axis=0)
        ready = yield self._count(start)
        arrived = yield self._dispatch(ready)
        arrived = cast_received(machine, work, got, arrived)
        rows = MemoryTraffic(got * work.operand_row_bytes, got * work.operand_row_bytes, got)
        if not work.is_backward:
            arrived = machine.small_kernels(Kind.LAYOUT, 2 * SORT_BYTES * got, arrived, programs.ORDER)
        arrived = machine.memory_kernel(Kind.PERMUTE, rows, arrived, programs.SORT, moves="every received row")
        done = separate_kernels(machine, work, machine.sms.for_kernels(), shared(arrived))
        rows = MemoryTraffic(got * work.result_row_bytes, got * work.result_row_bytes, got)
        done = yield machine.memory_kernel(Kind.UNPERMUTE, rows, done, programs.SORT, moves="every result")
        done = yield self._combine(done)
        ends = self._finish(done)
        machine.notes.follow("combined", np.arange(layer.num_tokens), ends[layer.source_rank])
        return ends

    # ---- what the sizes need ---------------------------------------------------------------------

    def _count(self, start: Tasks) -> Tasks:
        """Gather ids, count rows of the node's experts, tell their GPUs: (rank,) tasks."""
        work, machine = self._work, self._machine
        if work.is_backward:  # which finds all maps and splits as they were
            return cast_before_dispatch(machine, work, start)
        ids = self._rail(programs.IDS, ID_BYTES * self._own_slots, start)
        counted = self._histogram(ids)
        if self._has_peers:
            experts = np.bincount(work.placement.expert_rank, minlength=machine.num_ranks)
            domains = machine.domains
            near = ~domains.crosses(machine.ranks[:, None], machine.ranks)
            begun = machine.kernel(counted, programs.TELL)
            counted = self._exchanges.run(
                "inside", COUNTS, near * experts * programs.COUNT_BYTES, begun, payload=False
            ).done
        counted = machine.small_kernels(Kind.LAYOUT, 0, counted, programs.SPLITS)
        machine.host.wait(DISPATCH, counted, programs.SPLITS_WAIT)
        weights = self._rail(programs.WEIGHTS, WEIGHT_BYTES * self._own_slots, counted)
        ordered = machine.small_kernels(Kind.LAYOUT, SORT_BYTES * self._slots, weights, programs.ROUTE)
        return cast_before_dispatch(machine, work, ordered)

    @property
    def _own_slots(self) -> int:
        """Slots for experts that each rank's own tokens have."""
        return self._whole.tokens * int(self._work.expert_ids.shape[1])

    def _histogram(self, after: Tasks) -> Tasks:
        """Count rows by expert: (rank,) tasks."""
        machine, slots, experts = self._machine, self._slots, self._work.num_experts
        ids = slots * ID_BYTES
        counts = np.full_like(slots, experts * programs.COUNT_BYTES)
        if self._options.counts == "histogram":
            moved = MemoryTraffic(ids, counts)
            return machine.memory_kernel(Kind.LAYOUT, moved, after, programs.HISTOGRAM)
        flags = slots * experts * programs.COUNT_BYTES
        made = machine.memory_kernel(Kind.LAYOUT, MemoryTraffic(ids, flags), after, programs.ONE_HOT)
        return machine.memory_kernel(Kind.LAYOUT, MemoryTraffic(flags, counts), made, programs.ONE_HOT_SUM)

    # ---- dispatch --------------------------------------------------------------------------------

    def _dispatch(self, ready: Tasks) -> Tasks:
        """Gather tokens between nodes, send their rows inside: (rank,) tasks."""
        machine, gathered, sent = self._machine, [], ready
        for part in self._parts:
            sent = self._gather(part, sent)
            gathered.append(sent)
        computed = ready
        if not self._work.is_backward:
            nbytes = self._slots * (ID_BYTES + WEIGHT_BYTES)
            computed = machine.small_kernels(Kind.LAYOUT, nbytes, computed, programs.SELECT)
            machine.host.wait(DISPATCH, computed, programs.ROWS_WAIT)
        arrived = computed
        for part, came in zip(self._parts, gathered, strict=True):
            computed = self._permute_rows(part, self._both(computed, came))
            arrived = self._sent_inside(part, self._both(arrived, computed))
        return arrived

    def _gather(self, part: TokenPart, after: Tasks) -> Tasks:
        """Send the tokens of a part to all other nodes: (rank,) tasks."""
        if not self._is_hierarchical:
            return after
        machine, row_bytes = self._machine, self._work.dispatch_row_bytes
        sizes = self._routes.rails(part.tokens * row_bytes)
        begun = machine.kernel(after, programs.ROWS)
        exchanged = self._exchanges.run("rail", DISPATCH, sizes, begun, payload=True)
        domains, token = machine.domains, part.token
        owner = self._work.source_rank[token]
        place = places(np.bincount(owner, minlength=machine.num_ranks)) * row_bytes
        home = domains.of(owner)
        for hop in range(1, domains.num):
            there = domains.peer(owner, (home + hop) % domains.num)
            self._follow(token, exchanged.leaves(owner, there, place))
        return exchanged.done

    def _permute_rows(self, part: TokenPart, after: Tasks) -> Tasks:
        """Make a row for each slot of the node, and room for the sums: (rank,) tasks."""
        work, machine, rows = self._work, self._machine, part.inside.sum(axis=1)
        gathered = part.tokens * machine.domains.num
        b_d, b_c = work.dispatch_row_bytes, work.combine_row_bytes
        every = np.full(machine.num_ranks, gathered)
        # The zeros are the gathered tokens times nothing.
        made = machine.memory_kernel(Kind.PERMUTE, MemoryTraffic(every * b_d, every * b_c), after, programs.ZEROS)
        moved = MemoryTraffic(part.wanted * b_d, rows * b_d, rows)
        permuted = machine.memory_kernel(Kind.PERMUTE, moved, made, programs.PERMUTE)
        if work.is_backward:
            # Times the results, gradients are those of the gate weights.
            moved = MemoryTraffic(rows * (b_d + work.result_row_bytes), rows * b_d)
            permuted = machine.memory_kernel(
                Kind.PERMUTE,
                moved,
                permuted,
                programs.WEIGH,
                moves="gradients and results, weighed gradients",
            )
        return permuted

    def _sent_inside(self, part: TokenPart, after: Tasks) -> Tasks:
        """Send the rows of a part to their experts: (rank,) tasks. A node of one GPU has them."""
        work, machine = self._work, self._machine
        token, source = work.pair_token[part.pair], self._routes.gatherer[part.pair]
        owner = work.source_rank[token]
        own = source == owner  # the others have left between nodes
        if not self._has_peers:
            self._follow(token[own], after[owner[own]])
            return after
        row_bytes = work.dispatch_row_bytes
        begun = machine.kernel(after, programs.INSIDE)
        exchanged = self._exchanges.run("inside", DISPATCH, part.inside * row_bytes, begun, payload=True)
        leaves = exchanged.leaves(source[own], work.pair_rank[part.pair][own], part.place[own] * row_bytes)
        self._follow(token[own], leaves)
        if work.is_backward:
            return exchanged.done
        begun = machine.kernel(exchanged.done, programs.INSIDE_IDS)
        sizes = part.inside * ID_BYTES
        return self._exchanges.run("inside", DISPATCH, sizes, begun, payload=False).done

    # ---- combine ---------------------------------------------------------------------------------

    def _combine(self, done: Ints) -> Tasks:
        """Bring results back inside, add them up, send sums between nodes: (rank,) tasks."""
        machine, row_bytes = self._machine, self._work.combine_row_bytes
        back = added = scattered = done
        for part in self._parts:
            if self._has_peers:
                begun = machine.kernel(back, programs.INSIDE)
                sizes = part.inside.T * row_bytes
                back = self._exchanges.run("inside", COMBINE, sizes, begun, payload=True).done
            added = self._add_part(part, self._both(added, back))
            scattered = added if not self._is_hierarchical else self._scatter(part, scattered, added)
        if self._work.is_backward and self._is_hierarchical:
            begun = machine.kernel(scattered, programs.WEIGHT_GRADIENTS)
            sizes = self._routes.rails(WEIGHT_BYTES * self._own_slots, back=True)
            scattered = self._exchanges.run("rail", COMBINE, sizes, begun, payload=False).done
        return scattered

    def _add_part(self, part: TokenPart, after: Tasks) -> Tasks:
        """Weigh the returned rows of a part and add them to the node's sums: (rank,) tasks."""
        work, machine, rows = self._work, self._machine, part.inside.sum(axis=1)
        b_c = work.combine_row_bytes
        if not work.is_backward:
            moved = MemoryTraffic(rows * b_c, rows * b_c)
            after = machine.memory_kernel(
                Kind.UNPERMUTE, moved, after, programs.WEIGH, moves="every returned row twice"
            )
        moved = MemoryTraffic(2 * rows * b_c, rows * b_c, rows)
        return machine.memory_kernel(Kind.UNPERMUTE, moved, after, programs.ADD)

    def _scatter(self, part: TokenPart, before: Ints, added: Ints) -> Tasks:
        """Send the sums of a part to their owners' nodes: (rank,) tasks."""
        machine = self._machine
        sizes = self._routes.rails(part.tokens * self._work.combine_row_bytes, back=True)
        begun = machine.kernel(self._both(before, added), programs.SUMS)
        return self._exchanges.run("rail", COMBINE, sizes, begun, payload=True).done

    def _finish(self, after: Tasks) -> Tasks:
        """Add the sums of all nodes at their owner: (rank,) tasks."""
        machine, work = self._machine, self._work
        if not self._is_hierarchical:
            return after
        own = np.full(machine.num_ranks, self._whole.tokens)
        sums = MemoryTraffic(self._gathered * work.combine_row_bytes, own * work.result_row_bytes)
        return machine.memory_kernel(Kind.UNPERMUTE, sums, after, programs.ADD_NODES)

    # ---- in general ------------------------------------------------------------------------------

    def _rail(self, name: str, nbytes: int, after: Tasks) -> Tasks:
        """Gather what is no row between nodes, `nbytes` of each rank: (rank,) tasks."""
        if not self._is_hierarchical:
            return after
        begun = self._machine.kernel(after, name)
        sizes = self._routes.rails(nbytes)
        return self._exchanges.run("rail", COUNTS, sizes, begun, payload=False).done

    def _both(self, one: Ints, other: Ints) -> Tasks:
        """(rank,) marks behind two (rank,) tasks."""
        return one if one is other else self._machine.gather(other, self._machine.ranks, one)

    def _follow(self, token: Ints, leaves: Ints) -> None:
        """Note in which tasks tokens leave, but those of nobody."""
        number = self._number[token]
        real = number >= 0
        self._machine.notes.follow("sent", number[real], leaves[real])
