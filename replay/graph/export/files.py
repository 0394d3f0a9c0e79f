"""Files that are complete or not there at all, the same bytes every time."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from replay.graph.errors import UserError

#: The last percent of compression would take gzip most of its time.
_GZIP_LEVEL = 6


@dataclass(frozen=True)
class Written:
    """Account of what an export wrote.

    Attributes
    ----------
    paths
        The files.
    num_events
        Events, nodes or operations in them.
    notes
        What the files do not hold or hold differently, a sentence each.
    """

    paths: tuple[Path, ...]
    num_events: int
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when everything is in it.

    Parameters
    ----------
    path
        Where it is to be; compressed if the name ends with ``.gz``, without the time of writing,
        so that the same content gives the same bytes.

    Raises
    ------
    UserError
        If the file cannot be written there.
    """
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as raw:
            if target.suffix == ".gz":
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield raw
        aside.replace(target)
    except OSError as error:
        message = f"cannot write {target}: {error.strerror or error}"
        raise UserError(message) from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
