# mypy: allow-untyped-defs
# Numba infers the types; annotations would promise what it does not check.
"""All numba code of this package, in one file.

Numba's cache notices edits in the file a kernel lives in and not in others, so kernels that call
each other share a file. With ``NUMBA_DISABLE_JIT=1`` the same source runs as plain Python.
"""

from __future__ import annotations

from numba import njit


@njit(cache=True)
def count_edges(src, dst, indptr, num_predecessors):
    """Count successors into ``indptr[2:]`` and predecessors; look for dangling and backward edges.

    ``indptr`` has two rows more than there are tasks and is zero; a negative ``dst`` is a gate
    event and counts as a successor only.

    Returns
    -------
    Row of a dangling edge or -1, number of edges between tasks, and whether all of them go from
    a smaller to a larger id.
    """
    num_tasks = num_predecessors.size
    num_edges = 0
    is_forward = True
    for edge in range(src.size):
        u = src[edge]
        v = dst[edge]
        if u >= num_tasks or v >= num_tasks:
            return edge, num_edges, False
        indptr[u + 2] += 1
        if v >= 0:
            num_predecessors[v] += 1
            num_edges += 1
            if v <= u:
                is_forward = False
    for task in range(2, num_tasks + 2):
        indptr[task] += indptr[task - 1]
    return -1, num_edges, is_forward


@njit(cache=True)
def place_edges(src, dst, indptr, successors):
    """Scatter the targets to their source's row, in the order given; ``indptr`` is the cursor."""
    for edge in range(src.size):
        row = src[edge] + 1
        successors[indptr[row]] = dst[edge]
        indptr[row] += 1


@njit(cache=True)
def order_tasks(
    indptr,
    successors,
    missing,
    member_indptr,
    member_waiter,
    member_gate,
    tile_indptr,
    tile_slots,
    tile_first,
    tile_gate,
    order,
):
    """Kahn's order with two extra nodes a gate: all members arrived, all tiles done.

    ``missing`` starts as the number of predecessors (a gate's dependency counts as one) and is
    used up. Returns how many nodes were reached.
    """
    num_tasks = missing.size
    num_members = member_gate.size
    num_gates = member_indptr.size - 1
    arrivals = member_indptr[1:] - member_indptr[:-1]
    tiles = tile_indptr[1:] - tile_indptr[:-1]
    done = 0
    for task in range(num_tasks):
        if missing[task] == 0:
            order[done] = task
            done += 1
    for gate in range(num_gates):
        if arrivals[gate] == 0:
            order[done] = num_tasks + 2 * gate
            done += 1
        if tiles[gate] == 0:
            order[done] = num_tasks + 2 * gate + 1
            done += 1
    head = 0
    while head < done:
        node = order[head]
        head += 1
        if node < num_tasks:
            for edge in range(indptr[node], indptr[node + 1]):
                target = successors[edge]
                if target >= 0:
                    missing[target] -= 1
                    if missing[target] == 0:
                        order[done] = target
                        done += 1
                elif -1 - target < num_members:
                    gate = member_gate[-1 - target]
                    arrivals[gate] -= 1
                    if arrivals[gate] == 0:
                        order[done] = num_tasks + 2 * gate
                        done += 1
                else:
                    gate = tile_gate[-1 - target - num_members]
                    tiles[gate] -= 1
                    if tiles[gate] == 0:
                        order[done] = num_tasks + 2 * gate + 1
                        done += 1
        elif (node - num_tasks) % 2 == 0:
            gate = (node - num_tasks) // 2
            for tile in range(tile_indptr[gate], tile_indptr[gate + 1]):
                if tile_slots[tile] > 0:
                    missing[tile_first[tile]] -= 1
                    if missing[tile_first[tile]] == 0:
                        order[done] = tile_first[tile]
                        done += 1
        else:
            gate = (node - num_tasks) // 2
            for member in range(member_indptr[gate], member_indptr[gate + 1]):
                waiter = member_waiter[member]
                if waiter >= 0:
                    missing[waiter] -= 1
                    if missing[waiter] == 0:
                        order[done] = waiter
                        done += 1
    return done
