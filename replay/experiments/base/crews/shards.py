"""Shares of a study for jobs that know nothing of each other but their numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from replay.errors import UserError
from replay.experiments.base.crews.worker import Job

PIECES = 8  # of each shard, or more: points at the end of a study may take longer


def parse_shard(text: str) -> tuple[int, int]:
    """Read a number and how many there are, such as ``1/4``.

    Raises
    ------
    UserError
        If it is not one of them.

    Examples
    --------
    >>> parse_shard("4/4")
    (4, 4)
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        message = f"--shard {text!r}: expected i/n with i from 1 to n, such as 1/4 to 4/4"
        raise UserError(message)
    return number, count


def shard_of(jobs: Sequence[Job], number: int, count: int) -> list[Job]:
    """One of several shares of about equal size, those of one trace together where they can be.

    Parameters
    ----------
    jobs
        All, those of one trace together.
    number, count
        Which share, from 1, and how many there are.
    """
    most = max(1, len(jobs) // (PIECES * count))
    shards: list[list[Job]] = [[] for _ in range(count)]
    for _, group in groupby(jobs, key=lambda job: job.trace):
        same = list(group)
        for start in range(0, len(same), most):
            min(shards, key=len).extend(same[start : start + most])
    return shards[number - 1]
