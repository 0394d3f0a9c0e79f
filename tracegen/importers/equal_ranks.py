"""Ranks that saw the same tokens, as those of a group of tensor parallelism do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tracegen.importers.values import few
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

ALIKE = 0.5
"""Share of equal rows from which two ranks cannot have had tokens of their own: independent tokens
agree in every layer almost never, the same tokens disagree only where rounding decides."""
COMPARED_ROWS = 4096
"""Rows of two ranks that are compared where not all are equal."""

SameTokens = Callable[[int, int], bool | None]
"""Whether two ranks had the same tokens, where the dump tells; None where it does not."""


def same_tokens(
    rows: Mapping[int, Array],
    tp: int | None,
    known: SameTokens | None = None,
    *,
    has_tp: bool = True,
) -> dict[int, int]:
    """For each rank, the lowest one that had the same tokens.

    Parameters
    ----------
    rows
        What each rank recorded, (row, anything); equal where tokens are.
    tp
        Neighbouring ranks that hold the same tokens, as the user says; None to find out.
    known
        Tells whether two ranks had the same tokens, which equal routes do not prove; None where
        only the routes can tell.
    has_tp
        Whether the command that is asked for has an option ``--tp``.

    Raises
    ------
    UserError
        If ranks agree in part, so that only the user can say what they are, or if ``tp`` does not
        fit the ranks.
    """
    order = sorted(rows)
    first: dict[int, int] = {}
    if tp is not None:
        if len(order) % tp:
            msg = f"--tp {tp}: there are {len(order)} ranks, no multiple of it ({few(order)})"
            raise UserError(msg)
        first = {rank: order[place // tp * tp] for place, rank in enumerate(order)}
        for rank, lowest in first.items():
            share = _alike(rows[lowest], rows[rank])
            if rank != lowest and known is not None and known(lowest, rank) is False:
                why = f"ranks {lowest} and {rank} have other requests, positions or input ids"
            elif share < ALIKE:
                why = f"ranks {lowest} and {rank} agree in {share:.0%} of rows"
            else:
                continue
            msg = f"--tp {tp}: {why}, so they did not see the same tokens; --tp 1 takes each for a source of its own"
            raise UserError(msg)
    else:
        for rank in order:
            first[rank] = next(
                (one for one in dict.fromkeys(first.values()) if _is_replica(rows, one, rank, known, has_tp=has_tp)),
                rank,
            )
    return first


def replica_notice(first: Mapping[int, int], rows: Mapping[int, Array], *, has_tp: bool = True) -> list[str]:
    """Sentences for the user on replicas that were left out.

    Parameters
    ----------
    first
        Rank to the one it repeats.
    rows, has_tp
        As for :func:`same_tokens`.
    """
    kept = sorted(set(first.values()))
    if len(kept) == len(first):
        return []
    unequal = sum(not np.array_equal(rows[rank], rows[one]) for rank, one in first.items())
    return [
        f"{len(first)} ranks saw the tokens of {len(kept)} (tensor parallelism): one of each group "
        f"was kept, rank {few(kept)}{'; --tp 1 keeps all' if has_tp else ''}."
        + (f" {unequal} of the others differ from it in some rows." if unequal else "")
    ]


def _is_replica(rows: Mapping[int, Array], one: int, other: int, known: SameTokens | None, *, has_tp: bool) -> bool:
    """Tell whether two ranks had the same tokens.

    Raises
    ------
    UserError
        If the same tokens seem to have chosen other experts, or ranks agree in part.
    """
    stated = None if known is None else known(one, other)
    if stated is False:
        return False
    share = _alike(rows[one], rows[other])
    alike = share >= ALIKE
    if share == 1 or (stated and alike):
        return True
    if stated is None and not alike:
        return False
    stated_too = " and have the same positions and input ids" if stated else ""
    msg = f"ranks {one} and {other} agree in {share:.0%} of rows{stated_too}: did they see the same "
    msg += "tokens? "
    msg += "Give --tp N, the ranks that do, or --tp 1" if has_tp else "Then give the file of one"
    raise UserError(msg)


def _alike(one: Array, other: Array) -> float:
    """Share of rows in which two recordings agree; 0 if they differ in shape."""
    if one.shape != other.shape:
        return 0.0
    if np.array_equal(one, other):
        return 1.0
    step = max(1, len(one) // COMPARED_ROWS)
    return float((one[::step] == other[::step]).all(axis=1).mean())
