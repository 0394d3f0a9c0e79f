"""Results of every kind, read back from their files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from replay.errors import UserError
from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.base.load import load_result, read_document, validated
from replay.files import exists, is_folder

CLASSES: dict[str, str] = {
    "moereplay-tensor": "replay.experiments.dense.result.TensorResult",
    "moereplay-tensor-comparison": "replay.experiments.dense.result.TensorComparison",
    "moereplay-train": "replay.experiments.train.result.TrainResult",
    "moereplay-train-comparison": "replay.experiments.train.result.TrainComparison",
    "moereplay-infer": "replay.experiments.serve.result.InferResult",
    "moereplay-infer-comparison": "replay.experiments.serve.result.InferComparison",
    "moereplay-arrivals": "replay.experiments.serve.arrivals.Arrived",
    "moereplay-arrivals-comparison": "replay.experiments.serve.arrivals.ArrivedComparison",
    "moereplay-collective": "replay.experiments.collective.result.CollectiveResult",
    "moereplay-choice": "replay.experiments.choose.result.Choice",
    "moereplay-difference": "replay.studies.differences.parts.Difference",
    "moereplay-explanation": "replay.studies.differences.explanation.Explanation",
    "moereplay-placing": "replay.experiments.place.placing.Placing",
    "moereplay-sweep": "replay.studies.sweeps.saved.SavedSweep",
    "moereplay-validation": "replay.studies.validate.saved.SavedValidation",
}
"""Class of each kind of document that has one schema, by the name of its format."""

EXPERIMENT_OF = {
    "moereplay-tensor": "dense",
    "moereplay-train": "train",
    "moereplay-infer": "serve",
    "moereplay-collective": "collective",
}
"""Experiment that reads older schemas of a kind of document."""

REPLAYS = ("moereplay-result", "moereplay-comparison")
"""Documents whose older schemas are read too."""


def load(path: str | Path) -> Any:
    """Read any result that a command of ours wrote.

    Parameters
    ----------
    path
        Its JSON file, or the folder of a study.

    Returns
    -------
    An object of the class that wrote it, or one of `CLASSES` that holds the same.

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
    where, document = read_document(path, "Result")
    given = format_of(document)
    name = given.rpartition("/")[0]
    if name in REPLAYS:
        return load_result(path)
    if name not in CLASSES:
        message = (
            f"{where} is no result: its format is {given or None!r}; there are reports of "
            f"{', '.join(one.removeprefix('moereplay-') for one in (*REPLAYS, *CLASSES))}"
        )
        raise UserError(message)
    kind = class_of(name)
    present = str(kind.model_fields["format"].default)
    older = EXPERIMENTS[EXPERIMENT_OF[name]].older if name in EXPERIMENT_OF else {}
    if given != present and given not in older:
        message = (
            f"{where} has the format {given!r}; this version reads {', '.join([*older, present])}"
        )
        raise UserError(message)
    if given in older:
        try:
            document = older[given](document)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            message = f"{where} is damaged: {given} has another shape ({type(error).__name__})"
            raise UserError(message) from None
    return validated(kind, document, where)


def format_of(document: Any) -> str:
    """Format that a document states, or that one of an older version must have; empty for none."""
    if not isinstance(document, dict):
        return ""
    found = document.get("format", document.get("schema"))
    if found is None and {"slot_expert", "windows"} <= document.keys():
        return "moereplay-placing/1"  # which once did not say so
    return found if isinstance(found, str) else ""


def class_of(name: str) -> type[BaseModel]:
    """Class of `CLASSES` by the name of its format."""
    module, _, kind = CLASSES[name].rpartition(".")
    found: type[BaseModel] = getattr(importlib.import_module(module), kind)
    return found
