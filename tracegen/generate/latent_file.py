"""Parameter files of latent routing: a :class:`~.latent_model.LatentModel` as TOML."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracegen import regular
from tracegen.errors import UserError
from tracegen.generate.latent_model import SCALES, LatentModel
from tracegen.trace.arrays import Floats

SCHEMA = "moereplay-latent/1"
FACTOR_UNIT = 0.01
"""Factors are written as whole hundredths: finer than what a trace can tell (about 1/sqrt(T))."""
BIAS_UNIT = 0.001
"""Biases are written as whole thousandths: a load then moves by less than 0.3 %."""
MAX_FILE_BYTES = 64 * 2**20
_MAX_NUMBER = 10**6


def dumps(model: LatentModel) -> str:
    """Text of a parameter file.

    Parameters
    ----------
    model
        Rounded to :data:`FACTOR_UNIT` and :data:`BIAS_UNIT`.
    """
    lines = [
        "# Parameters of `moereplay trace generate latent`; reveals loads, factors and lengths,",
        "# and neither tokens nor texts. Factors in hundredths, biases in thousandths, row by row.",
        f'schema = "{SCHEMA}"',
        f"topk = {model.topk}",
        f"num_experts = {model.num_experts}",
    ]
    lines += [f"{name} = {getattr(model, name)!r}" for name in ("slow", "drift")]
    lines += [f"num_types = {model.num_types}", f"type_exponent = {model.type_exponent!r}"]
    lines += [f"num_requests = {model.num_requests}"]
    lines += [f"prompt_len = {list(model.prompt_len)}", f"num_tokens = {list(model.num_tokens)}"]
    if model.shares.size:
        lines.append(f"shares = {_whole(model.shares, FACTOR_UNIT)}")
    lines += ["", "[source]"]
    lines += [f"{key} = {_quoted(value)}" for key, value in model.source.items()]
    for layer, number in enumerate(model.moe_layer_index):
        lines += ["", "[[layer]]", f"index = {number}"]
        lines.append(f"bias = {_whole(model.bias[layer], BIAS_UNIT)}")
        for name, factors in model.factors.items():
            lines.append(f"{name} = {_whole(factors[layer], FACTOR_UNIT)}")
        if model.shares.size:
            lines.append(f"mixed = {_whole(model.mixed[layer], FACTOR_UNIT)}")
        lines.append(f"private = {_whole(model.private[layer], FACTOR_UNIT)}")
        together = np.column_stack(
            [model.pairs[layer], np.rint(model.pair_mixing[layer] / FACTOR_UNIT)]
        )
        lines.append(f"pairs = {_whole(together, 1)}")
    return "\n".join(lines) + "\n"


def _whole(values: npt.NDArray[Any], unit: float) -> str:
    """Numbers as a flat TOML list of whole units, without spaces."""
    return "[" + ",".join(map(str, np.rint(values / unit).astype(int).ravel().tolist())) + "]"


def _quoted(text: str) -> str:
    """Basic TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else " " for c in escaped) + '"'


def read(path: str | Path) -> LatentModel:
    """Read a parameter file.

    Parameters
    ----------
    path
        As written from :func:`dumps`.

    Raises
    ------
    UserError
        If it cannot be read, or a value is missing or not possible.
    """
    try:
        text = regular.read_text(path, MAX_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot read the parameter file {path}: {error}"
        raise UserError(msg) from error
    return loads(text, where=str(path))


def loads(text: str, where: str) -> LatentModel:
    """Model of the text of a parameter file.

    Parameters
    ----------
    text
        As from :func:`dumps`.
    where
        Name of the source in errors.

    Raises
    ------
    UserError
        Naming the first key that is missing or not possible.
    """
    try:
        document = regular.parse_toml(text)
    except ValueError as error:
        msg = f"{where}: not valid TOML: {error}"
        raise UserError(msg) from error
    if document.get("schema") != SCHEMA:
        msg = f"{where}: schema is {document.get('schema')!r}; this moereplay reads {SCHEMA!r}"
        raise UserError(msg)
    try:
        return _checked(document)
    except KeyError as error:
        msg = f"{where}: the key {error} is missing"
        raise UserError(msg) from error
    except (TypeError, ValueError, AttributeError) as error:
        msg = f"{where}: {error}"
        raise UserError(msg) from error


def _checked(document: dict[str, Any]) -> LatentModel:
    """Model of a parsed file; raises KeyError, TypeError or ValueError with the reason."""
    num_experts = _number(document, "num_experts", 1, 65_534)
    layers = document["layer"]
    if not isinstance(layers, list) or not layers:
        msg = "there is no table [[layer]]"
        raise ValueError(msg)
    index = tuple(_number(layer, "index", 0, 65_535) for layer in layers)
    if list(index) != sorted(set(index)):
        msg = f"the layers' index must ascend, not {list(index)}"
        raise ValueError(msg)

    def stack(name: str, unit: float) -> Floats:
        rows = [_list(layer, name, f"layer {i}: {name}") for i, layer in enumerate(layers)]
        sizes = {len(row) for row in rows}
        if len(sizes) != 1 or sizes.pop() % num_experts:
            msg = f"{name} must have as many numbers in every layer, a multiple of {num_experts}"
            raise ValueError(msg)
        array = np.array(rows, np.float64) * unit
        return array.reshape(len(layers), num_experts, -1)

    pairs = [_list(layer, "pairs", "pairs") for layer in layers]
    if len({len(row) for row in pairs}) != 1 or len(pairs[0]) % 3:
        msg = "pairs must be triples (expert, expert, factor), as many in every layer"
        raise ValueError(msg)
    together = np.array(pairs, np.float64).reshape(len(layers), -1, 3)
    who = together[:, :, :2].astype(np.int64)
    if who.size and not (
        (who >= 0).all() and (who < num_experts).all() and (who[..., 0] != who[..., 1]).all()
    ):
        msg = f"pairs must name two different experts below {num_experts}"
        raise ValueError(msg)
    bias = stack("bias", BIAS_UNIT)
    if bias.shape[2] != 1:
        msg = f"bias must have {num_experts} numbers per layer"
        raise ValueError(msg)
    shares = np.zeros((0, len(SCALES)))
    mixed = np.zeros((0, 0, 0))
    if "shares" in document:  # files of before have none
        flat, mixed = np.array(_list(document, "shares", "shares")), stack("mixed", FACTOR_UNIT)
        if flat.size != mixed.shape[2] * len(SCALES) or (flat < 0).any():
            msg = f"shares must be {len(SCALES)} numbers from 0 for each mixed factor of an expert"
            raise ValueError(msg)
        shares = flat.reshape(-1, len(SCALES)) * FACTOR_UNIT
    source = {str(k): str(v) for k, v in document.get("source", {}).items()}
    return LatentModel(
        moe_layer_index=index,
        topk=_number(document, "topk", 1, min(num_experts, 255)),
        bias=bias[:, :, 0],
        factors={name: stack(name, FACTOR_UNIT) for name in SCALES},
        private=stack("private", FACTOR_UNIT),
        pairs=who,
        pair_mixing=together[:, :, 2] * FACTOR_UNIT,
        mixed=mixed,
        shares=shares,
        slow=_fraction(document, "slow"),
        drift=_fraction(document, "drift"),
        num_types=_number(document, "num_types", 0, 10**6),
        type_exponent=float(document["type_exponent"]),
        prompt_len=_lengths(document, "prompt_len", 0),
        num_tokens=_lengths(document, "num_tokens", 1),
        num_requests=_number(document, "num_requests", 1, 2**31),
        source=source,
    )


def _number(table: dict[str, Any], name: str, low: int, high: int) -> int:
    """A whole number within limits."""
    value = table[name]
    if type(value) is not int or not low <= value <= high:
        msg = f"{name} is {value!r}; possible are whole numbers {low} to {high}"
        raise ValueError(msg)
    return value


def _fraction(table: dict[str, Any], name: str) -> float:
    """A correlation."""
    value = table[name]
    if not isinstance(value, int | float) or not 0 <= value < 1:
        msg = f"{name} is {value!r}; possible is 0 <= {name} < 1"
        raise ValueError(msg)
    return float(value)


def _list(table: dict[str, Any], name: str, label: str) -> list[int]:
    """A list of whole numbers of sensible size."""
    values = table[name]
    if not isinstance(values, list) or not all(
        type(value) is int and abs(value) <= _MAX_NUMBER for value in values
    ):
        msg = f"{label} must be a list of whole numbers up to {_MAX_NUMBER}"
        raise ValueError(msg)
    return values


def _lengths(table: dict[str, Any], name: str, least: int) -> tuple[int, ...]:
    """Quantiles of a length."""
    values = _list(table, name, name)
    if not values or values != sorted(values) or values[0] < least:
        msg = f"{name} must be ascending lengths of at least {least}"
        raise ValueError(msg)
    return tuple(values)


def rounded(model: LatentModel) -> LatentModel:
    """The model as its parameter file will say it.

    Parameters
    ----------
    model
        Any.
    """
    return dataclasses.replace(loads(dumps(model), "parameters"), source=model.source)
