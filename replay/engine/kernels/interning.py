# mypy: allow-untyped-defs, allow-untyped-calls
"""Numbers for what occurs many times: triples, found by a hash table."""

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


@inline
def _place_of(n, place):
    """First place at which the key of a row is looked for."""
    row = n.order[place]
    return _hash(n.table[row], n.key[row], 0) & (2 * n.room - 1)


@inline
def _prefetch_names(n, place):
    """Ask for where the keys of later rows may be found: first for the number, then for the name."""
    if place + AHEAD < n.num_rows and n.room > IN_CACHE:
        prefetch(n.name_table, _place_of(n, place + AHEAD))
        number = n.name_table[_place_of(n, place + AHEAD // 2)]
        if number >= 0:
            prefetch(n.names, number)


class KeyReferences(KernelMemory):
    """Rows that name a key each, by its table and its name there, and the numbers of the keys."""

    first_row = FixedNumber()
    num_rows = FixedNumber()
    room = FixedNumber()  # for keys
    order = Vector(np.int32)  # of the rows
    table = StridedColumn()
    key = StridedColumn()
    names = Records(TRIPLE)
    name_table = Vector(np.int32)
    number = Vector(np.int32)  # of the rows in that order
    sizes = Vector(np.int64)  # how many keys there are


@entry(KeyReferences)
def number_keys(n):
    """Number the keys as they are named first: those that are wanted together lie together.

    Returns the row at which there was no room for another one, or the number of rows.
    """
    for place in range(n.first_row, n.num_rows):
        if n.sizes[0] == n.room:
            return place
        _prefetch_names(n, place)
        row = n.order[place]
        n.number[place] = intern(n.name_table, n.room, n.names, n.sizes, 0, n.table[row], n.key[row], 0)
    return n.num_rows
