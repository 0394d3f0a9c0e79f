# mypy: allow-untyped-defs, allow-untyped-calls
"""Tasks on their way: channels, and the tournament over them; what is asked for ahead.

In the twin: ``events``, which is one heap there.
"""

from __future__ import annotations

from replay.engine.backend.compiling import inline, prefetch
from replay.engine.kernels.layout import IN_ORDER, NEVER, TOO_LATE


@inline
def prefetch_task(p, task):
    """Ask for the record of a task and for where its touches begin, unless it is a gate's event."""
    if task < 0:
        return
    prefetch(p.tasks, task)
    if p.has_touches != 0:
        prefetch(p.touch_indptr, task)


@inline
def prefetch_targets(p, task):
    """Ask for the records of a task's first and last successors: it is visible soon."""
    edge = p.tasks[task].edges
    end = p.tasks[task + 1].edges
    if edge < end:
        prefetch_task(p, p.successors[edge])
        if edge + 1 < end:
            prefetch_task(p, p.successors[end - 1])


@inline
def set_key(p, channel, key):
    """Write a channel's leaf of the tree and the minima above it."""
    tree = p.tree
    node = p.first_leaf + channel
    tree[node] = key
    while node > 1:
        other = tree[node ^ 1]
        if other < key:
            key = other
        node >>= 1
        tree[node] = key


@inline
def _lower_key(p, channel, key):
    """Write a channel's leaf, which was larger, and what it is smaller than above it."""
    tree = p.tree
    node = p.first_leaf + channel
    while node > 0 and tree[node] > key:
        tree[node] = key
        node >>= 1


@inline
def _heap_push(p, base, size, time, task):
    """Add to the binary heap of ``size`` entries that starts at ``base``."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if p.heap_time[base + parent] <= time:
            break
        p.heap_time[base + place] = p.heap_time[base + parent]
        p.heap_task[base + place] = p.heap_task[base + parent]
        place = parent
    p.heap_time[base + place] = time
    p.heap_task[base + place] = task


@inline
def _heap_pop(p, base, last):
    """Remove the first entry of the heap of ``last + 1`` entries that starts at ``base``."""
    time = p.heap_time[base + last]
    task = p.heap_task[base + last]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        if child + 1 < last and p.heap_time[base + child + 1] < p.heap_time[base + child]:
            child += 1
        if p.heap_time[base + child] >= time:
            break
        p.heap_time[base + place] = p.heap_time[base + child]
        p.heap_task[base + place] = p.heap_task[base + child]
        place = child
    p.heap_time[base + place] = time
    p.heap_task[base + place] = task


@inline
def send(p, number, task, time):
    """Put a task on a channel, from which it comes back at ``time``."""
    if time > (NEVER >> p.shift):
        p.status[0] = TOO_LATE  # the key would not fit; the loop ends before it looks again
        return
    channel = p.channels[number]
    if channel.kind == IN_ORDER:
        tail = channel.tail
        p.slots[tail] = task
        channel.tail = tail + 1
        is_first = channel.head == tail
    else:
        base = channel.base
        _heap_push(p, base, channel.size, time, task)
        channel.size += 1
        is_first = p.heap_time[base] == time
    if is_first:
        _lower_key(p, number, (time << p.shift) | number)


@inline
def receive(p, number):
    """Take the first task off a channel."""
    key = NEVER
    channel = p.channels[number]
    if channel.kind == IN_ORDER:
        head = channel.head
        task = p.slots[head]
        head += 1
        channel.head = head
        if head < channel.tail:
            following = p.slots[head]
            key = (p.tasks[following].visible << p.shift) | number
            edge = p.tasks[following].edges
            if edge < p.tasks[following + 1].edges:
                prefetch_task(p, p.successors[edge])
            if head + 2 < channel.tail:
                prefetch(p.tasks, p.slots[head + 2])
    else:
        base = channel.base
        task = p.heap_task[base]
        last = channel.size - 1
        _heap_pop(p, base, last)
        channel.size = last
        if last > 0:
            key = (p.heap_time[base] << p.shift) | number
            prefetch_targets(p, p.heap_task[base])
    set_key(p, number, key)
    return task
