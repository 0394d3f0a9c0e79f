"""Parameter files of latent routing: those of kinds, and the first format, which stays readable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracegen.generate import kind_file
from tracegen.generate import parameter_values as values
from tracegen.generate.latent_kinds import KindModel
from tracegen.generate.latent_model import SCALES, LatentModel
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Floats

SCHEMAS = ("moereplay-latent/1", kind_file.SCHEMA)
FACTOR_UNIT = 0.01
"""Of factors in files of the first format."""
BIAS_UNIT = 0.001
"""Of biases there."""
MAX_FILE_BYTES = 64 * 2**20


def read(path: str | Path) -> LatentModel | KindModel:
    """Read a parameter file.

    Parameters
    ----------
    path
        Of either format.

    Raises
    ------
    UserError
        If it cannot be read, or a value is missing or not possible.
    """
    return loads(regular.read_input(path, "the parameter file", MAX_FILE_BYTES), where=str(path))


def loads(text: str, where: str) -> LatentModel | KindModel:
    """Model of the text of a parameter file.

    Parameters
    ----------
    text
        Of the file.
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
    schema = document.get("schema")
    if schema not in SCHEMAS:
        msg = f"{where}: schema is {schema!r}; this moereplay reads {' and '.join(SCHEMAS)}"
        raise UserError(msg)
    try:
        return kind_file.parse(document) if schema == kind_file.SCHEMA else _by_scale(document)
    except KeyError as error:
        msg = f"{where}: the key {error} is missing"
        raise UserError(msg) from error
    except (TypeError, ValueError, AttributeError) as error:
        msg = f"{where}: {error}"
        raise UserError(msg) from error


def _by_scale(document: dict[str, Any]) -> LatentModel:
    """Model of the first format; raises KeyError, TypeError or ValueError with the reason."""
    num_experts = values.number(document, "num_experts", 1, 65_534)
    layers = document["layer"]
    index = values.layer_index(layers)

    def stack(name: str, unit: float) -> Floats:
        rows = [values.whole_list(layer, name, f"layer {i}: {name}") for i, layer in enumerate(layers)]
        sizes = {len(row) for row in rows}
        if len(sizes) != 1 or sizes.pop() % num_experts:
            msg = f"{name} must have as many numbers in every layer, a multiple of {num_experts}"
            raise ValueError(msg)
        array = np.array(rows, np.float64) * unit
        return array.reshape(len(layers), num_experts, -1)

    pairs = [values.whole_list(layer, "pairs", "pairs") for layer in layers]
    if len({len(row) for row in pairs}) != 1 or len(pairs[0]) % 3:
        msg = "pairs must be triples (expert, expert, factor), as many in every layer"
        raise ValueError(msg)
    together = np.array(pairs, np.float64).reshape(len(layers), -1, 3)
    who = together[:, :, :2].astype(np.int64)
    if who.size and not ((who >= 0).all() and (who < num_experts).all() and (who[..., 0] != who[..., 1]).all()):
        msg = f"pairs must name two different experts below {num_experts}"
        raise ValueError(msg)
    bias = stack("bias", BIAS_UNIT)
    if bias.shape[2] != 1:
        msg = f"bias must have {num_experts} numbers per layer"
        raise ValueError(msg)
    shares = np.zeros((0, len(SCALES)))
    mixed = np.zeros((0, 0, 0))
    if "shares" in document:  # files of before have none
        flat, mixed = (
            np.array(values.whole_list(document, "shares", "shares")),
            stack("mixed", FACTOR_UNIT),
        )
        if flat.size != mixed.shape[2] * len(SCALES) or (flat < 0).any():
            msg = f"shares must be {len(SCALES)} numbers from 0 for each mixed factor of an expert"
            raise ValueError(msg)
        shares = flat.reshape(-1, len(SCALES)) * FACTOR_UNIT
    source = {str(k): str(v) for k, v in document.get("source", {}).items()}
    return LatentModel(
        moe_layer_index=index,
        topk=values.number(document, "topk", 1, min(num_experts, 255)),
        bias=bias[:, :, 0],
        factors={name: stack(name, FACTOR_UNIT) for name in SCALES},
        private=stack("private", FACTOR_UNIT),
        pairs=who,
        pair_mixing=together[:, :, 2] * FACTOR_UNIT,
        mixed=mixed,
        shares=shares,
        slow=values.fraction(document, "slow"),
        drift=values.fraction(document, "drift"),
        num_types=values.number(document, "num_types", 0, 10**6),
        type_exponent=float(document["type_exponent"]),
        prompt_len=values.lengths(document, "prompt_len", 0),
        num_tokens=values.lengths(document, "num_tokens", 1),
        num_requests=values.number(document, "num_requests", 1, 2**31),
        source=source,
    )
