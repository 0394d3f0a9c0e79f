"""The folder of a sweep: one file per finished point, named by the point's identity.

Files are written aside and renamed, so that a killed sweep leaves whole files only; two sweeps may
share a folder, since equal names hold equal bytes. A file is believed only if it says that it is
the point looked for and its checksum holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.errors import UserError
from replay.files import write_text

FORMAT = "moereplay-point/1"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a point.

    Attributes
    ----------
    result
        The JSON of its result, as objects; None if it was refused.
    refused
        Why it cannot run; None if it did.
    """

    result: dict[str, Any] | None
    refused: str | None


class Store:
    """Finished points in a folder.

    Parameters
    ----------
    folder
        Made if it is not there.

    Raises
    ------
    UserError
        If it cannot be made, or is a file.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            (self.folder / "points").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot make the folder {self.folder}: {error.strerror}"
            raise UserError(message) from None

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
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return None, f"{path.name} is damaged: not JSON"
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            return None, f"{path.name} is not a point of a sweep ({FORMAT})"
        checksum = document.pop("sha256", None)
        if document.get("id") != identity:
            return None, f"{path.name} holds another point"
        if checksum != _checksum(document):
            return None, f"{path.name} is damaged: its checksum does not hold"
        result, refused = document.get("result"), document.get("refused")
        if isinstance(result, dict) == isinstance(refused, str):
            return None, f"{path.name} is damaged: it holds no result"
        return Outcome(result, refused), ""

    def write(self, identity: str, description: Mapping[str, Any], outcome: Outcome) -> None:
        """Keep a point.

        Raises
        ------
        UserError
            If the folder cannot be written to.
        """
        document = {
            "format": FORMAT,
            "id": identity,
            "description": dict(description),
            "result": outcome.result,
            "refused": outcome.refused,
        }
        document["sha256"] = _checksum(document)
        text = json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"
        write_text(self.path(identity), text)


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
