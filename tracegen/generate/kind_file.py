"""Parameter files of routing by kinds: a :class:`~.latent_kinds.KindModel` as TOML."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tracegen.generate import parameter_values as values
from tracegen.generate.fields import SPANS, Spectrum
from tracegen.generate.latent_kinds import KindModel
from tracegen.trace.arrays import Floats

SCHEMA = "moereplay-latent/2"
UNIT = 0.01
"""Factors, places and biases are whole hundredths of the deviation of the noise: the load of an
expert moves by less than a hundredth of itself."""
SHARE_UNIT = 0.001
"""Shares, slopes and axes are whole thousandths; axes of the longest of their numbers."""


def dumps(model: KindModel) -> str:
    """Text of a parameter file.

    Parameters
    ----------
    model
        Rounded to :data:`UNIT` and :data:`SHARE_UNIT`.
    """
    # Rounded down, so that shares of no more than the whole stay that.
    shares = np.floor(model.spectrum.shares[:, 1:] / SHARE_UNIT + 1e-6) * SHARE_UNIT
    axes = model.axes / max(float(np.abs(model.axes).max()), 1e-300)
    lines = [
        "# Parameters of `moereplay trace generate latent`; reveals loads, kinds of tokens,",
        "# factors and lengths, and neither tokens nor texts. Kinds, biases and factors in",
        "# hundredths; axes, shares and slopes in thousandths, row by row.",
        f'schema = "{SCHEMA}"',
        f"topk = {model.topk}",
        f"num_experts = {model.num_experts}",
        f"num_latents = {model.kinds.shape[1]}",
        f"drift = {model.spectrum.drift!r}",
        f"num_requests = {model.num_requests}",
        f"prompt_len = {list(model.prompt_len)}",
        f"num_tokens = {list(model.num_tokens)}",
        f"members = {values.whole(model.tokens, 1)}",
        f"kinds = {values.whole(model.kinds, UNIT)}",
        f"axes = {values.whole(axes, SHARE_UNIT)}",
        f"shares = {values.whole(shares, SHARE_UNIT)}",
        f"slopes = {values.whole(model.spectrum.lean[: len(axes)], SHARE_UNIT)}",
        "",
        "[source]",
    ]
    lines += [f"{key} = {values.quote(value)}" for key, value in model.source.items()]
    for layer, index in enumerate(model.moe_layer_index):
        lines += ["", "[[layer]]", f"index = {index}"]
        lines.append(f"bias = {values.whole(model.bias[layer], UNIT)}")
        lines.append(f"factors = {values.whole(model.factors[layer], UNIT)}")
    return "\n".join(lines) + "\n"


def parse(document: dict[str, Any]) -> KindModel:
    """Model of a parsed file.

    Parameters
    ----------
    document
        Of the TOML file.

    Raises
    ------
    KeyError, TypeError, ValueError
        With the reason.
    """
    experts = values.number(document, "num_experts", 1, 65_534)
    latents = values.number(document, "num_latents", 1, 4096)
    index = values.layer_index(document["layer"])

    def table(source: dict[str, Any], name: str, label: str, width: int, unit: float) -> Floats:
        numbers = values.whole_list(source, name, label)
        if not numbers or len(numbers) % width:
            msg = f"{label} has {len(numbers)} numbers; it must be rows of {width}"
            raise ValueError(msg)
        return np.array(numbers, np.float64).reshape(-1, width) * unit

    def layers(name: str, width: int) -> Floats:
        found = [
            table(layer, name, f"layer {number}: {name}", width, UNIT)
            for number, layer in zip(index, document["layer"], strict=True)
        ]
        for number, one in zip(index, found, strict=True):
            if len(one) != experts:
                msg = f"layer {number}: {name} has {len(one)} rows, not one for each of {experts}"
                raise ValueError(f"{msg} experts")
        return np.stack(found)

    kinds = table(document, "kinds", "kinds", latents, UNIT)
    tokens = np.array(values.whole_list(document, "members", "members"), np.int64)
    if tokens.size != len(kinds) or (tokens < 1).any():
        msg = f"members must be {len(kinds)} numbers from 1, one for each kind"
        raise ValueError(msg)
    axes = table(document, "axes", "axes", latents, SHARE_UNIT)
    lasting = table(document, "shares", "shares", len(SPANS) - 1, SHARE_UNIT)
    slopes = table(document, "slopes", "slopes", 1, SHARE_UNIT)[:, 0]
    if len(lasting) != len(axes) + latents or (lasting < 0).any():
        msg = f"shares must be {len(SPANS) - 1} numbers from 0 for each axis and each latent"
        raise ValueError(msg)
    if slopes.size != len(axes):
        msg = f"slopes must be {len(axes)} numbers, one for each axis"
        raise ValueError(msg)
    spectrum = Spectrum(
        np.column_stack([np.zeros(len(lasting)), lasting]),
        np.append(slopes, np.zeros(latents)),
        values.fraction(document, "drift"),
    )
    return KindModel(
        moe_layer_index=index,
        topk=values.number(document, "topk", 1, min(experts, 255)),
        bias=layers("bias", 1)[:, :, 0],
        factors=layers("factors", latents),
        kinds=kinds,
        tokens=tokens,
        axes=axes,
        spectrum=spectrum.limit(),
        prompt_len=values.lengths(document, "prompt_len", 0),
        num_tokens=values.lengths(document, "num_tokens", 1),
        num_requests=values.number(document, "num_requests", 1, 2**31),
        source={str(k): str(v) for k, v in document.get("source", {}).items()},
    )


def round_model(model: KindModel) -> KindModel:
    """The model as its parameter file will say it.

    Parameters
    ----------
    model
        Any.
    """
    from tracegen.shared import regular

    return dataclasses.replace(parse(regular.parse_toml(dumps(model))), source=model.source)
