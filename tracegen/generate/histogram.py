"""Expert loads as they were counted elsewhere: in a recorded trace, a file, an array."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from tracegen.generate.shares import weights_for_shares
from tracegen.shared.errors import UserError
from tracegen.shared.strict import Strict


class Histogram(Strict):
    """Loads to imitate, tokens drawn independently.

    Gives the recorded load of each expert, and none of a recorded trace's dependence
    between tokens, between experts or between layers.
    """

    load: tuple[tuple[float, ...], ...]
    """Token-expert pairs of each expert, one row per layer; a single row serves all layers.

    Also accepted: an array, the name or path of a trace (its load), or a file of loads in any
    layout of :func:`tracegen.importers.loads.read_loads`, the counts of its steps added up."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: object) -> object:
        """Turn whatever names a load into rows of numbers."""
        if isinstance(given, dict) and "load" in given:
            return {**given, "load": _rows(given["load"])}
        return given

    def weights(self, num_experts: int, topk: int, layer: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Weight of each expert of a layer, shape (expert,)."""
        if len(self.load) == 1:
            layer = 0
        if layer >= len(self.load):
            msg = f"the histogram has {len(self.load)} layers; layer {layer} was asked for"
            raise UserError(msg)
        counts = np.asarray(self.load[layer], np.float64)
        if counts.size != num_experts:
            msg = f"the histogram is for {counts.size} experts, the model has {num_experts}"
            raise UserError(msg)
        if not np.isfinite(counts).all() or (counts < 0).any():
            msg = f"the histogram of layer {layer} must hold finite numbers, none negative"
            raise UserError(msg)
        if np.count_nonzero(counts) < topk:
            msg = f"the histogram of layer {layer} has fewer than {topk} experts in use"
            raise UserError(msg)
        return weights_for_shares(counts, topk)


def _rows(load: Any) -> tuple[tuple[float, ...], ...]:
    """Rows of numbers from an array, a file of loads or a trace."""
    if isinstance(load, str | Path):
        load = _read_rows(load)
    try:
        array = np.atleast_2d(np.asarray(load, np.float64))
    except (ValueError, TypeError) as error:
        msg = "a histogram is a list of numbers, or a list of such lists of equal length"
        raise UserError(msg) from error
    return tuple(tuple(row) for row in array.tolist())


def _read_rows(name: str | Path) -> npt.NDArray[np.int64]:
    """Loads of a trace by its name or file, or of any other file that holds loads."""
    from tracegen.importers.loads import is_named_so, read_loads
    from tracegen.library import open_trace

    path = Path(name)
    if is_named_so(path):
        return read_loads([path]).of_used().per_layer()
    with open_trace(name) as file:
        return np.asarray(file.load_per_expert, np.int64)
