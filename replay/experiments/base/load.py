"""Loading of any document, by the experiment or study that wrote it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from replay.errors import UserError
from replay.experiments.base.documents import DocumentKind, format_of, present_document, read_one_of
from replay.experiments.base.experiment import EXPERIMENTS
from replay.files import exists, is_folder

OTHERS = (
    "replay.studies.differences.parts:Difference",
    "replay.studies.differences.explanation:Explanation",
    "replay.studies.uncertainty.sureness:Sureness",
    "replay.studies.sweeps.sweep_file:SavedSweep",
    "replay.studies.validate.validation_file:SavedValidation",
)
"""Documents of studies: rooms above this one, which are not imported."""


def load_result(path: str | Path) -> Any:
    """Read any result, comparison or study that a command wrote.

    Parameters
    ----------
    path
        Its JSON file, of this or an older version; or the folder of a study.

    Returns
    -------
    An object of the class that wrote it, or of one that holds the same.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged, is of a newer version or is something else.
    """
    if isinstance(path, (str, Path)) and is_folder(path):  # of a study, by `sweep -o`
        path = Path(path) / "sweep.json"
        if not exists(path):
            message = f"{path.parent} is a folder without the sweep.json of a finished study"
            raise UserError(message)
    return read_one_of(document_kinds(), path)


def document_kinds() -> list[DocumentKind]:
    """Kinds of all documents that are read."""
    kinds = [kind for one in EXPERIMENTS.values() for kind in one.document_kinds()]
    for home in OTHERS:
        module, _, name = home.partition(":")
        kinds.append(DocumentKind(getattr(importlib.import_module(module), name), {}))
    return kinds


def present_result(document: Any) -> dict[str, Any]:
    """Give the JSON of the result of one replay in the present schema.

    Raises
    ------
    UserError
        If it is damaged, of no experiment, or of a newer version.
    """
    given = format_of(document)
    for experiment in EXPERIMENTS.values():
        kind = DocumentKind(experiment.result, experiment.older)
        if given in kind.readable:
            return present_document(kind, document, "its result")[0]
    message = f"its format is {given!r}, which no experiment of this version reads"
    raise UserError(message)
