"""Several processes of one run: the rank of this one, and the end of the others."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tracegen.file.journal import SUFFIX, Journal, is_journal, open_journal
from tracegen.shared.errors import UserError

WAIT_S = 300.0
"""Time that rank 0 waits for the journals of the others to be complete, in seconds."""
POLL_S = 0.05


@dataclass(frozen=True)
class World:
    """Place of a process among those of the run."""

    rank: int
    size: int
    session: str
    """Equal on all ranks of one capture, different for another."""


def world() -> World:
    """Rank and size of the run: torch.distributed's, else what torchrun put in the environment."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        # Every rank starts the capture, so this is a collective that all of them reach.
        token = [uuid.uuid4().hex]
        dist.broadcast_object_list(token, src=0)
        return World(dist.get_rank(), dist.get_world_size(), token[0])
    size = os.environ.get("WORLD_SIZE", "1")
    if size.isdigit() and int(size) > 1:
        run = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT")]
        return World(int(os.environ.get("RANK", "0")), int(size), "-".join(run))
    return World(0, 1, uuid.uuid4().hex)


def journal_path(target: Path, rank: int, size: int) -> Path:
    """Journal of a rank, beside the trace it becomes.

    Parameters
    ----------
    target
        Trace file.
    rank, size
        Of the process.

    Examples
    --------
    >>> journal_path(Path("a.h5"), 0, 1).name, journal_path(Path("a.h5"), 3, 8).name
    ('a.h5.partial', 'a.h5.rank3.partial')
    """
    middle = f".rank{rank}" if size > 1 else ""
    return target.with_name(f"{target.name}{middle}{SUFFIX}")


def refuse_remains(journal: Path, option: str) -> None:
    """Refuse to write where a killed capture has left its journal.

    Parameters
    ----------
    journal
        Path that is to be written.
    option
        Option by which the user asks to overwrite.

    Raises
    ------
    UserError
        If something is there.
    """
    if journal.exists():
        msg = (
            f"{journal} is what a killed capture left; `moereplay trace recover {journal}` makes "
            f"a trace of it, {option} throws it away"
        )
        raise UserError(msg)


def wait_for_all(target: Path, here: World, wait_s: float = WAIT_S) -> list[Journal]:
    """Journals of all ranks, once each is complete. Called on rank 0.

    Files are watched instead of a barrier, so that a rank that died cannot hang the others.

    Parameters
    ----------
    target
        Trace file.
    here
        This process.
    wait_s
        Longest time to wait, in seconds.

    Raises
    ------
    UserError
        Naming the ranks that did not finish in time.
    """
    deadline = time.monotonic() + wait_s
    missing = set(range(here.size))
    found: dict[int, Journal] = {}
    while missing:
        for rank in sorted(missing):
            path = journal_path(target, rank, here.size)
            if not is_journal(path) or path.stat().st_size == 0:
                continue
            try:
                journal = open_journal(path)
            except UserError:
                continue  # its header is being written
            if journal.done is not None and journal.head["session"] == here.session:
                found[rank] = journal
        missing -= set(found)
        if missing and time.monotonic() > deadline:
            msg = (
                f"ranks {sorted(missing)} did not finish their part of {target} within "
                f"{wait_s:.0f} s (all ranks must see this folder); the parts are kept, and "
                "`moereplay trace recover` joins them"
            )
            raise UserError(msg)
        if missing:
            time.sleep(POLL_S)
    return [found[rank] for rank in range(here.size)]
