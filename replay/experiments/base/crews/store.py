"""A folder of results: one file per finished point, named by the point's identity.

Files are written aside and renamed, so that who is killed leaves whole files only; several
processes may share a folder, since equal names hold equal bytes. A file is believed only if it says
that it is the point looked for and its checksum holds.

A point that failed lies apart, in ``failures``: that is no result, and it is tried again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from replay.errors import UserError
from replay.experiments.base.documents import json_text, validate
from replay.files import ManagedFolder, parse_json

FORMAT = "moereplay-point/1"
FAILURE_FORMAT = "moereplay-failure/1"
MOST_REASON = 10_000  # characters, of a point that cannot run
FOLDERS = ("points", "failures", "results", "claims")
MOST_BYTES = 2**30  # of a file; a chain of thousands of layers has a tenth of it


Present = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class PointOutcome:
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
    """Failure of a point.

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
    present
        Gives the JSON of a result in the present schema, or raises `UserError`; or the class of all
        results, if there is but one.
    """

    def __init__(self, folder: str | Path, present: type[BaseModel] | Present) -> None:
        self.files = ManagedFolder(folder)
        self.folder = self.files.path
        self.present: Present = partial(_check, present) if isinstance(present, type) else present
        self._points, self._failures = self.files.folder("points"), self.files.folder("failures")

    def check(self, names: Iterable[str]) -> None:
        """Refuse a folder that could not be filled, before the work that fills it.

        Parameters
        ----------
        names
            Of files that will be written beside the points.

        Raises
        ------
        UserError
            If something that is no file has the name of one.
        """
        for name in names:
            self.files.check(name)
        for name in FOLDERS:
            self.files.folder(name).check_place()

    def read(self, identity: str) -> tuple[PointOutcome | None, str]:
        """Look for a point.

        Returns
        -------
        What became of it, or None; and what is wrong with the file that is there, if anything is.

        Raises
        ------
        UserError
            If what is there is no file: to replace it might be to overwrite another.
        """
        name = f"{identity}.json"
        try:
            text = self._points.read_text(name, MOST_BYTES)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            return None, f"{name} cannot be read: {error.strerror}"
        except UnicodeDecodeError as error:
            return None, f"{name} is damaged: {error}"
        outcome, problem = read_point(text, identity, self.present)
        return outcome, problem and f"{name} {problem}"

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
        with self._points.present():
            self._points.write_text(f"{identity}.json", text)
        self._failures.remove(f"{identity}.json")

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
        with self._failures.present():
            self._failures.write_text(f"{identity}.json", json_text(document))


def point_text(identity: str, description: Mapping[str, Any], outcome: PointOutcome) -> str:
    """Text of a point's file: the same bytes for the same point."""
    document = {
        "format": FORMAT,
        "id": identity,
        "description": dict(description),
        "result": outcome.result,
        "refused": outcome.refused,
    }
    document["sha256"] = _checksum(document)
    return json_text(document)


def read_point(text: str, identity: str, present: Present) -> tuple[PointOutcome | None, str]:
    """Outcome of a point by the text of its file, or None and the fault of the text.

    Parameters
    ----------
    present
        As of `Store`.
    """
    try:
        document = parse_json(text)
    except ValueError:
        return None, "is damaged: not JSON"
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return None, f"is not a point of a sweep ({FORMAT})"
    checksum = document.pop("sha256", None)
    if document.get("id") != identity:
        return None, "holds another point"
    if checksum != _checksum(document):
        return None, "is damaged: its checksum does not hold"
    result, refused = document.get("result"), document.get("refused")
    if isinstance(result, dict) == (isinstance(refused, str) and len(refused) <= MOST_REASON):
        return None, "is damaged: it holds no result"
    try:
        # A checksum says that nothing was torn, not who wrote it.
        if result is not None:
            result = present(result)
    except UserError as error:
        return None, f"is not believed: {error}"
    return PointOutcome(result, refused), ""


def _check(kind: type[BaseModel], document: dict[str, Any]) -> dict[str, Any]:
    """Believe a result that its class takes."""
    validate(kind, document, "its result")
    return document


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
