# mypy: allow-untyped-defs, allow-untyped-calls
"""Numbers for what occurs many times: triples, found by a hash table, and keys, found by their cells."""

from __future__ import annotations

import numpy as np

from replay.engine.backend.compiling import AHEAD, IN_CACHE, entry, inline, inner, prefetch
from replay.engine.backend.memory import FixedNumber, KernelMemory, Records, StridedColumn, Vector
from replay.engine.kernels.layout import TRIPLE


@inline
def _hash(a, b, c):
    """Hash of three whole numbers; 31 bits per factor: nothing overflows as plain Python."""
    low = 0x7FFFFFFF
    h = ((a ^ (a >> 31)) & low) * 0x5BD1E995
    h = ((h ^ (h >> 31) ^ b ^ (b >> 31)) & low) * 0x2C1B3C6D
    h = ((h ^ (h >> 31) ^ c ^ (c >> 31)) & low) * 0x297A2D39
    return h ^ (h >> 31)


@inner
def intern(table, room, triples, sizes, what, a, b, c):
    """Number of the triple (a, b, c); a new one counts in ``sizes[what]``.

    ``table`` is an open-addressing table of numbers (-1 free) for ``room`` triples.
    """
    mask = 2 * room - 1
    place = _hash(a, b, c) & mask
    while table[place] >= 0:
        found = triples[table[place]]
        if found.a == a and found.b == b and found.c == c:
            return table[place]
        place = (place + 1) & mask
    number = sizes[what]
    sizes[what] = number + 1
    triple = triples[number]
    triple.a = a
    triple.b = b
    triple.c = c
    table[place] = number
    return number


class Triples(KernelMemory):
    """A table of triples, and where they are found."""

    size = FixedNumber()
    room = FixedNumber()
    triples = Records(TRIPLE)
    table = Vector(np.int32)


@entry(Triples)
def rehash(t):
    """Enter the first ``size`` triples into an empty table."""
    mask = 2 * t.room - 1
    for number in range(t.size):
        triple = t.triples[number]
        place = _hash(triple.a, triple.b, triple.c) & mask
        while t.table[place] >= 0:
            place = (place + 1) & mask
        t.table[place] = number


class KeySpans(KernelMemory):
    """Rows that name a key of a table each, and the smallest and largest key of each table."""

    num_rows = FixedNumber()
    table = StridedColumn()
    key = StridedColumn()
    low = Vector(np.int64)
    high = Vector(np.int64)


@entry(KeySpans)
def find_key_spans(s):
    """Find the smallest and the largest key of each table."""
    for row in range(s.num_rows):
        table, key = s.table[row], s.key[row]
        if key < s.low[table]:
            s.low[table] = key
        if key > s.high[table]:
            s.high[table] = key


class KeyReferences(KernelMemory):
    """Rows that name a key of a table each, the cells of these keys, and their numbers."""

    num_rows = FixedNumber()
    order = Vector(np.int32)  # of the rows
    table = StridedColumn()
    key = StridedColumn()
    first = Vector(np.int64)  # see `KeyCells`
    cells = Vector(np.int32)  # the number of each key that has one, plus 1
    number = Vector(np.int32)  # of the rows in that order


@entry(KeyReferences)
def number_keys(n):
    """Number the keys in the order in which they are named first: those that are wanted together lie together.

    Returns the number of keys.
    """
    num_keys = 0
    looks_ahead = n.num_rows > IN_CACHE
    for place in range(n.num_rows):
        if looks_ahead and place + AHEAD < n.num_rows:
            row = n.order[place + AHEAD]
            prefetch(n.cells, n.first[n.table[row]] + n.key[row])
        row = n.order[place]
        cell = n.first[n.table[row]] + n.key[row]
        number = n.cells[cell]
        if number == 0:
            num_keys += 1
            number = num_keys
            n.cells[cell] = number
        n.number[place] = number - 1
    return num_keys
