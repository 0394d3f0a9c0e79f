"""Origin of a trace: a small validated record that travels in the file."""

import functools
import platform
from importlib import metadata
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tracegen.shared.errors import UserError
from tracegen.shared.strict import mistake_in


class DroppedRows(BaseModel):
    """Rows of the source that are not in the trace."""

    model_config = ConfigDict(extra="forbid")

    rows: int
    """Number of rows; 0 if it is not known."""
    why: str
    """E.g. padding, warm-up, or that the source did not record them."""


class Provenance(BaseModel):
    """Everything needed to make the trace again, or to cite where it is from."""

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["moereplay-provenance/1"] = "moereplay-provenance/1"
    tool: str
    """Program that wrote the trace."""
    version: str = ""
    """Its version."""
    command: str = ""
    """Command or function call."""
    parameters: dict[str, Any] = {}
    """Every parameter, seed included."""
    environment: dict[str, str] = {}
    """Versions of what it ran on."""
    source: dict[str, Any] = {}
    """Origin of imported or captured data: repository, commit, files, licence, checkpoint."""
    dropped: list[DroppedRows] = []
    """Rows that were left out, and the reason."""
    parents: list[str] = []
    """Content ids of the traces this one was derived from."""
    notes: str = ""
    """Anything else a reader must know."""


@functools.cache
def package_version() -> str:
    """Version of the installed distribution, or ``"unknown"`` in a bare source tree."""
    try:
        return metadata.version("moereplay")
    except metadata.PackageNotFoundError:
        return "unknown"


def record(command: str, **fields: Any) -> dict[str, Any]:
    """Provenance of something this package makes now.

    Parameters
    ----------
    command
        Command or function call.
    **fields
        Further fields of :class:`Provenance`.

    Returns
    -------
    A JSON-ready dictionary.
    """
    import numpy as np

    environment = {"python": platform.python_version(), "numpy": np.__version__}
    made = Provenance(
        tool="moereplay tracegen",
        version=package_version(),
        command=command,
        environment=environment,
        **fields,
    )
    return made.model_dump(mode="json", exclude_defaults=True)


def check(document: dict[str, Any]) -> None:
    """Refuse a provenance record that has unknown or misplaced fields.

    Parameters
    ----------
    document
        As stored in a trace; an empty one is allowed.

    Raises
    ------
    UserError
        Naming the first field that is wrong.
    """
    if not document:
        return
    try:
        Provenance.model_validate(document)
    except ValidationError as error:
        msg = "provenance: {}: {}".format(*mistake_in(error))
        raise UserError(msg) from error
