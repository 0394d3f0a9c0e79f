"""The folder of a sweep: one file per finished point, named by the point's identity.

Files are written aside and renamed, so that a killed sweep leaves whole files only; several sweeps
may share a folder, since equal names hold equal bytes. A file is believed only if it says that it
is the point looked for and its checksum holds.

A point that failed lies apart, in ``failures``: that is no result, and it is tried again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.files import folder, write_text

FORMAT = "moereplay-point/1"
FAILURE_FORMAT = "moereplay-failure/1"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a point; one of the three is there.

    Attributes
    ----------
    result
        The JSON of its result, as objects.
    refused
        Why it cannot run.
    failed
        What went wrong while it ran: a defect, too little memory, a process that was killed.
    """

    result: dict[str, Any] | None
    refused: str | None
    failed: str | None = None


@dataclass(frozen=True)
class Failure:
    """What went wrong with a point.

    Attributes
    ----------
    message
        In a line.
    traceback
        The innermost calls, outermost first; nothing if its process was killed.
    host
        The machine.
    """

    message: str
    traceback: tuple[str, ...]
    host: str


class Store:
    """Finished points in a folder.

    Parameters
    ----------
    folder
        Made with the first point that is written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def study_name(self) -> str | None:
        """Name of the study whose tables are there; None if there are none."""
        try:
            document = json.loads((self.folder / "sweep.json").read_text("utf-8"))
            return str(document["name"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def path(self, identity: str) -> Path:
        """Path of a point's file, whether it exists yet or not."""
        return self.folder / "points" / f"{identity}.json"

    def failure_path(self, identity: str) -> Path:
        """Path of the file that says how a point failed, if it did."""
        return self.folder / "failures" / f"{identity}.json"

    def read(self, identity: str) -> tuple[Outcome | None, str]:
        """Look for a point.

        Returns
        -------
        What became of it, or None; and what is wrong with the file that is there, if anything is.
        """
        path = self.path(identity)
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return None, ""
        except (OSError, UnicodeDecodeError) as error:
            return None, f"{path.name}: {error}"
        outcome, problem = read_point(text, identity)
        return outcome, problem and f"{path.name} {problem}"

    def write(self, identity: str, text: str) -> None:
        """Keep a point; it has not failed any more.

        Parameters
        ----------
        text
            Its `point_text`.

        Raises
        ------
        UserError
            If the folder cannot be written to.
        """
        with folder(self.folder / "points"):
            write_text(self.path(identity), text)
        self.failure_path(identity).unlink(missing_ok=True)

    def write_failure(self, identity: str, failure: Failure, settings: Mapping[str, Any]) -> None:
        """Keep what went wrong with a point, for people; nobody reads it back.

        Raises
        ------
        UserError
            If the folder cannot be written to.
        """
        document = {
            "format": FAILURE_FORMAT,
            "id": identity,
            "settings": dict(settings),
            "message": failure.message,
            "traceback": list(failure.traceback),
            "host": failure.host,
        }
        with folder(self.folder / "failures"):
            write_text(self.failure_path(identity), _json(document))


def point_text(identity: str, description: Mapping[str, Any], outcome: Outcome) -> str:
    """Text of a point's file: the same bytes for the same point."""
    document = {
        "format": FORMAT,
        "id": identity,
        "description": dict(description),
        "result": outcome.result,
        "refused": outcome.refused,
    }
    document["sha256"] = _checksum(document)
    return _json(document)


def read_point(text: str, identity: str) -> tuple[Outcome | None, str]:
    """What became of a point by the text of its file, or None and what is wrong with the text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None, "is damaged: not JSON"
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return None, f"is not a point of a sweep ({FORMAT})"
    checksum = document.pop("sha256", None)
    if document.get("id") != identity:
        return None, "holds another point"
    if checksum != _checksum(document):
        return None, "is damaged: its checksum does not hold"
    result, refused = document.get("result"), document.get("refused")
    if isinstance(result, dict) == isinstance(refused, str):
        return None, "is damaged: it holds no result"
    return Outcome(result, refused), ""


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
