"""Fills the pages about files that a user writes with what the code that reads them says.

A page in ``files/`` is written by hand but for lines of these forms::

    <!-- keys of NAME -->          every key of a model of `models`
    <!-- example NAME -->          a file of ``examples/``, which a test reads by `examples`
    <!-- docstring of MODULE -->   what a module says about the file that it reads
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from made import HERE
from made.fields import Key, keys_of
from made.text import anchor_of, code, entry, escaped, fence, of_docstring

_MARKER = re.compile(r"^<!-- (keys of|example|docstring of) (\S+) -->$", re.MULTILINE)


class Shown(NamedTuple):
    """A model whose keys a page shows, and those of its fields that are no keys of the file."""

    model: type[BaseModel]
    leave_out: tuple[str, ...] = ()


@cache
def models() -> Mapping[str, Shown]:
    """Models by the names that pages use."""
    from hwmodel.quantity import Quantity, Range
    from hwmodel.specs import sections
    from replay.experiments.choose.space import Budget, Space, Where
    from replay.experiments.dense.spec import TensorSpec
    from replay.experiments.layer.spec import RunSpec
    from replay.experiments.serve.arrivals.spec import ArrivalSpec
    from replay.experiments.serve.spec import InferSpec
    from replay.experiments.trace.spec import TraceSpec
    from replay.experiments.train.spec import TrainSpec
    from replay.model.work.transformer_shape import LayerShape
    from replay.steps.plan import ParallelPlan
    from replay.studies.sweeps.study import Claim, Free, Grid, QuantityColumn, Rivalry, Study
    from tracegen.generate import GENERATORS
    from tracegen.library.catalogue import Entry
    from tracegen.library.settings import FileSettings
    from tracegen.models import ModelShape

    prose = ("name", "title", "notes", "sources")
    return {
        "quantity": Shown(Quantity),
        "range": Shown(Range),
        **{f"machine.{name}": Shown(model) for name, model in sections().items()},
        "model": Shown(ModelShape, (*prose, "model_id")),
        "layer": Shown(LayerShape, prose),
        "study": Shown(Study, ("name", "grids")),
        "grid": Shown(Grid),
        "column": Shown(QuantityColumn),
        "answer": Shown(Rivalry),
        "claim": Shown(Claim),
        "free": Shown(Free),
        "plan": Shown(ParallelPlan),
        "space": Shown(Space),
        "where": Shown(Where),
        "budget": Shown(Budget),
        "arrivals": Shown(ArrivalSpec, tuple(InferSpec.model_fields)),
        "infer": Shown(InferSpec),
        "train": Shown(TrainSpec),
        "tensor": Shown(TensorSpec),
        "run": Shown(RunSpec),
        "trace": Shown(TraceSpec, tuple(one for one in RunSpec.model_fields if one != "steps")),
        "catalogue": Shown(Entry),
        "settings": Shown(FileSettings),
        **{f"kind.{name}": Shown(model) for name, model in GENERATORS.items()},
    }


@cache
def examples() -> Mapping[str, Callable[[Path], Any]]:
    """Files of ``examples/``, and what reads each as a command does."""
    import hwmodel
    from replay.experiments.choose import space
    from replay.experiments.layer.spec import RunSpec
    from replay.experiments.serve import request_files
    from replay.model.work import transformer_shape as layers
    from replay.model.work.map_files import load_document
    from replay.studies.sweeps.points import points_of
    from replay.studies.sweeps.study import load_study
    from tracegen import models as shapes

    return {
        "machine.toml": hwmodel.load,
        "model.toml": shapes.load,
        "layer.toml": layers.load,
        "study.toml": lambda path: points_of(load_study(path)),
        "claims.toml": lambda path: points_of(load_study(path)),
        "space.toml": space.load,
        "replay.toml": lambda path: RunSpec.from_toml(path.read_text(encoding="utf-8")),
        "requests.csv": request_files.read,
        "map.json": load_document,
    }


def filled(text: str) -> str:
    """Replace the marked lines of a page."""
    return _MARKER.sub(lambda match: _FILLERS[match[1]](match[2]), text)


def _keys(name: str) -> str:
    shown = models()[name]
    return "\n".join(
        entry(key.name, anchor_of(name, key.name), [of_docstring(key.says), _possible(key)])
        for key in keys_of(shown.model, leave_out=shown.leave_out)
    )


def _possible(key: Key) -> str:
    kind = escaped(key.kind)
    unit = f" of {key.unit}" if key.unit else ""
    kind = re.sub(r"^(a whole number|a number)", rf"\1{unit}", kind)
    given = "Must be given." if key.default is None else f"Default: {code(key.default)}."
    given = given.replace("`not given`", "none").replace("`the defaults of its keys`", "empty")
    return f"[{kind[:1].upper()}{kind[1:]}. {given}]{{.possible}}"


def _example(name: str) -> str:
    language = {".toml": "toml", ".json": "json", ".csv": "text"}[Path(name).suffix]
    return fence((HERE / "examples" / name).read_text(encoding="utf-8"), language)


def _docstring(module: str) -> str:
    text = inspect.cleandoc(importlib.import_module(module).__doc__ or "")
    return f"````{{eval-rst}}\n{text}\n````\n"


_FILLERS = {"keys of": _keys, "example": _example, "docstring of": _docstring}
