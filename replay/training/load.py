"""Reading results of training steps back."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from replay.errors import UserError
from replay.run.load import read_document
from replay.training.result import TrainComparison, TrainResult

FORMATS: dict[str, type[TrainResult | TrainComparison]] = {
    kind.model_fields["format"].default: kind for kind in (TrainResult, TrainComparison)
}


def load_result(path: str | Path) -> TrainResult | TrainComparison:
    """Read a result or a comparison of training steps.

    Parameters
    ----------
    path
        A JSON file that ``--json`` or `TrainResult.save` wrote.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged or is something else.
    """
    where, document = read_document(path, "TrainResult")
    name = document.get("format") if isinstance(document, dict) else None
    if not isinstance(name, str) or name not in FORMATS:
        message = f"{where} has the format {name!r}; expected {' or '.join(FORMATS)}"
        raise UserError(message)
    try:
        return FORMATS[name].model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        message = f"{where} is damaged: {place}: {first['msg'].lower()}"
        raise UserError(message) from None
    except UserError as error:  # its spec has a setting that is not possible
        message = f"{where} is damaged: {error}"
        raise UserError(message) from None
