"""Ranks of one parallel run: those that saw the same tokens, and those that hold other layers.

A recorder that runs in every process of an engine writes one dump a rank. Under tensor
parallelism several ranks route the same tokens: they are one source, not several. Under pipeline
parallelism ranks hold different layers of the same tokens. Only data parallelism adds tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from tracegen.importers.equal_ranks import SameTokens, replica_notice, same_tokens
from tracegen.importers.options import ImportOptions
from tracegen.importers.values import few
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array


@dataclass
class RankPass:
    """One forward pass as one rank saw it."""

    step: int
    ids: Array
    """Expert ids, integer (token, layer, k)."""
    columns: dict[str, Array] = field(default_factory=dict)
    """What else is known of each token, each (token,)."""
    weights: Array | None = None
    """Gate weights, float (token, layer, k)."""


@dataclass
class Rank:
    """Records of one process, or, after merging, one source of tokens."""

    number: int
    layers: tuple[int, ...]
    passes: list[RankPass]

    @property
    def num_tokens(self) -> int:
        """Tokens of all passes."""
        return sum(len(part.ids) for part in self.passes)

    def rows(self) -> Array:
        """Ids of all passes, integer (token, layer * k)."""
        return np.concatenate([part.ids.reshape(len(part.ids), -1) for part in self.passes])

    def lengths(self) -> list[tuple[int, int]]:
        """Step and tokens of each pass."""
        return [(part.step, len(part.ids)) for part in self.passes]


def merge(
    ranks: list[Rank],
    options: ImportOptions,
    *,
    local_layers: bool,
    known: SameTokens | None = None,
    recorded: int | None = None,
) -> tuple[list[Rank], list[str]]:
    """Sources of tokens: replicas left out, pipeline stages joined.

    Parameters
    ----------
    ranks
        As recorded, in any order; one without rows was there and had no token.
    options
        ``ranks``, ``tp`` and ``pp``, where the user says them; ``num_layers`` or a model for the
        numbers of layers that each stage counts from zero.
    local_layers
        Whether every pipeline stage counts its layers from zero.
    known
        As for :func:`same_tokens`.
    recorded
        Ranks of the run, where the dump says how many there were.

    Returns
    -------
    One rank for each source, all with the same layers, in order and without a gap: those that had
    no token have no passes. And what to tell the user.

    Raises
    ------
    UserError
        If the ranks do not fit together, or only the user can say how.
    """
    by_number = {rank.number: rank for rank in sorted(ranks, key=lambda rank: rank.number)}
    options.hold_against("ranks", recorded, "the dump")
    total, seen = options.ranks or recorded, max(by_number) + 1
    if total is not None and seen > total:
        msg = f"--ranks {total}: the dump is of {seen} ranks or more, rank {seen - 1} is in it"
        raise UserError(msg)
    busy = {number: rank for number, rank in by_number.items() if rank.num_tokens}
    idle, by_number = 0 < len(busy) < len(by_number), busy or by_number
    order = list(by_number)
    rows = {number: rank.rows() for number, rank in by_number.items()}
    first: dict[int, int] = {}
    for layers in dict.fromkeys(rank.layers for rank in by_number.values()):
        alike = {number: rows[number] for number in order if by_number[number].layers == layers}
        first |= same_tokens(alike, options.tp, known)
    notices = replica_notice(first, rows)
    # Ranks that name layers as the model does have other tokens where they name the same ones.
    stages = _stages(by_number, first, options.pp, known if local_layers else lambda *_: False)
    if len(stages) == 1:
        return _place(stages[0], first, 1, total, seen, idle=idle), notices
    if len({len(stage) for stage in stages}) != 1:
        told = "; ".join(few([rank.number for rank in stage]) for stage in stages)
        msg = f"{len(stages)} pipeline stages have unequal numbers of sources of tokens: ranks {told}"
        raise UserError(msg)
    overlap = any(set(a[0].layers) & set(b[0].layers) for a, b in combinations(stages, 2))
    if overlap:
        notices.append(_number_layers(stages, options))
    merged = [_join(list(parts)) for parts in zip(*stages, strict=True)]
    notices.append(
        f"{len(order)} ranks are {len(stages)} pipeline stages of {len(merged)} source(s) of "
        "tokens: their layers were joined."
    )
    return _place(merged, first, len(stages), total, seen, idle=idle), notices


def in_order(ranks: list[Rank]) -> list[tuple[int, RankPass]]:
    """Passes of all ranks, step by step, each with the number of its rank.

    Parameters
    ----------
    ranks
        As merged.
    """
    parts = [(rank.number, part) for rank in ranks for part in rank.passes]
    return sorted(parts, key=lambda item: (item[1].step, item[0]))


def _place(
    sources: list[Rank],
    first: dict[int, int],
    num_stages: int,
    total: int | None,
    seen: int,
    *,
    idle: bool,
) -> list[Rank]:
    """Sources at the place that they have among all ranks, and those between and behind them.

    Raises
    ------
    UserError
        If so many ranks are no whole number of sources.
    """
    if total is None and len(sources) == 1 and not idle:
        return [replace(sources[0], number=0)]
    width = max(1, len(first) // (len(sources) * num_stages))
    places = [source.number // width for source in sources]
    if len(set(places)) < len(places) or any(rank // width != one // width for rank, one in first.items()):
        places = list(range(len(sources)))  # replicas are no neighbours: counted as they come
    each = width * num_stages
    if total is not None and total % each:
        msg = f"--ranks {total}: no multiple of {width} ranks with the same tokens times {num_stages} pipeline stages"
        raise UserError(msg)
    by_place = dict(zip(places, sources, strict=True))
    number = -(-(total or seen) // each)
    return [
        replace(by_place[place], number=place) if place in by_place else Rank(place, sources[0].layers, [])
        for place in range(max(number, max(places) + 1))
    ]


def _stages(
    by_number: dict[int, Rank], first: dict[int, int], pp: int | None, known: SameTokens | None
) -> list[list[Rank]]:
    """Ranks of each stage that are no replicas, in order; stages have the same tokens."""
    order = list(by_number)
    kept = [by_number[number] for number in order if first[number] == number]
    if pp is not None:
        if len(order) % pp:
            msg = f"--pp {pp}: there are {len(order)} ranks, no multiple of it ({few(order)})"
            raise UserError(msg)
        size = len(order) // pp
        place = {number: index // size for index, number in enumerate(order)}
        stages = [[rank for rank in kept if place[rank.number] == stage] for stage in range(pp)]
        for stage in stages:
            _same_layers(stage, f"--pp {pp}")
        return stages
    sets = sorted({rank.layers for rank in kept})
    if any(set(a) & set(b) for a, b in combinations(sets, 2)):
        msg = (
            f"ranks recorded different but overlapping layers, such as {few(sets[0])} and "
            f"{few(sets[1])}: are they pipeline stages that count from zero? Give --pp N"
        )
        raise UserError(msg)
    if len(sets) == 1:
        twins = [
            (a, b)
            for a, b in combinations(kept, 2)
            if a.lengths() == b.lengths() and (known is None or known(a.number, b.number) is not False)
        ]
        if twins:
            a, b = twins[0]
            msg = (
                f"ranks {a.number} and {b.number} recorded the same layers and as many tokens, but "
                "other experts: are they pipeline stages, which count their layers from zero "
                f"(--pp {len(kept)}), or tokens of their own (--pp 1)?"
            )
            raise UserError(msg)
    return [[rank for rank in kept if rank.layers == layers] for layers in sets]


def _same_layers(ranks: list[Rank], where: str) -> None:
    """Refuse ranks of one stage that hold different layers."""
    for rank in ranks[1:]:
        if rank.layers != ranks[0].layers:
            msg = (
                f"{where}: ranks {ranks[0].number} and {rank.number} would be one stage, but hold "
                f"layers {few(ranks[0].layers)} and {few(rank.layers)}"
            )
            raise UserError(msg)


def _number_layers(stages: list[list[Rank]], options: ImportOptions) -> str:
    """Give the layers of stages that each count from zero their numbers in the model."""
    shape = options.shape()
    total = options.num_layers or (None if shape is None else shape.num_layers)
    sizes = [max(rank.layers[-1] for rank in stage) + 1 for stage in stages]
    how = "stages hold no layer after their last with experts (--num-layers or --model says more)"
    if total is not None:
        share, rest = divmod(total, len(stages))
        if rest or max(sizes) > share:
            msg = (
                f"{len(stages)} pipeline stages with layers up to {max(sizes) - 1} are no equal "
                f"shares of {total} decoder layers"
            )
            raise UserError(msg)
        sizes, how = [share] * len(stages), f"each stage has {share} of {total} layers"
    begin = 0
    for place, (stage, size) in enumerate(zip(stages, sizes, strict=True)):
        stages[place] = [replace(rank, layers=tuple(begin + layer for layer in rank.layers)) for rank in stage]
        begin += size
    return f"Pipeline stages count their layers from zero; they were numbered as if {how}."


def _join(parts: list[Rank]) -> Rank:
    """One source of tokens, whose layers lie in several stages."""
    lengths = [part.lengths() for part in parts]
    for part, length in zip(parts[1:], lengths[1:], strict=True):
        if length != lengths[0]:
            msg = (
                f"ranks {parts[0].number} and {part.number} would be pipeline stages of the same "
                f"tokens, but have passes (step, tokens) {few(lengths[0])} and {few(length)}"
            )
            raise UserError(msg)
    passes = [
        replace(
            every[0],
            ids=np.concatenate([one.ids for one in every], axis=1),
            weights=None
            if every[0].weights is None
            else np.concatenate([one.weights for one in every if one.weights is not None], axis=1),
        )
        for every in zip(*(part.passes for part in parts), strict=True)
    ]
    layers = tuple(layer for part in parts for layer in part.layers)
    return Rank(min(part.number for part in parts), layers, passes)
