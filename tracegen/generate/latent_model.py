"""Parameters of latent routing, from which :mod:`tracegen.generate.latent` draws.

A token's score for expert ``e`` of layer ``l`` is

    bias[l, e] + sum over scales s of factors[s][l, e] . x_s + private[l, e] . x_l + noise

and some of the score of a partner, if it has one (then scaled back to variance one), with
standard normal latents ``x_s`` shared by all layers, and it visits the top-k. ``mixed`` factors
are on latents that are sums of all scales, in proportions of their own: what goes together in a
token and what stays together are then told by the same numbers. Such a sum counts by the square of
what it has over :data:`QUIET`, and not below (then brought back to mean 0 and variance 1): topics
are absent from most tokens and strong in a few, and experts that share one go together more than
Gaussian scores of any correlation would let them.

The scales differ in how long a latent lasts: one token, about two (``fast``: a moving average),
some dozens (``slow``: AR(1) within a request), a request, or a run of requests (``drift``: AR(1)
over requests). Noise fills each expert's variance up to one, so a squared factor is a share of what
decides about an expert.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracegen import regular
from tracegen.errors import UserError
from tracegen.trace.arrays import Floats

SCALES = ("token", "fast", "slow", "request", "drift")
"""Spans of a latent, shortest first."""
FAST_KERNEL = (1.0, 1.0, 0.3)
"""Moving average of the fast latents over a token and those before it: correlations 0.62, 0.14
and none after two tokens. Reuse in gpt-oss-20b-decode falls from 0.437 at lag 1 over 0.382 and
0.367 to a slow decline; an AR(1) as steep as that would need twice the variance for it."""
SCHEMA = "moereplay-latent/1"
QUIET = 0.5
"""Standard deviations up to which a mixed latent does nothing. Latents of gpt-oss-20b-decode and
of DeepSeek-V2-Lite (law), as their visits show them, are skewed by 1 to 6, this by 3."""
FACTOR_UNIT = 0.01
"""Factors are written as whole hundredths: finer than what a trace can tell (about 1/sqrt(T))."""
BIAS_UNIT = 0.001
"""Biases are written as whole thousandths: a load then moves by less than 0.3 %."""
MAX_SHARED = 0.98
"""Largest share of a score's variance that is not noise; all of it would make ties."""
MAX_FILE_BYTES = 64 * 2**20
_MAX_NUMBER = 10**6


@dataclass(frozen=True)
class LatentModel:
    """Everything that decides latent routing, apart from the seed. Dimensions: layer, expert."""

    moe_layer_index: tuple[int, ...]
    """Decoder layer number of each MoE layer."""
    topk: int
    bias: Floats
    """Popularity, in standard deviations of a score, shape (layer, expert)."""
    factors: dict[str, Floats]
    """By scale: shape (layer, expert, latent of that scale)."""
    private: Floats
    """Factors on latents of one token and one layer, shape (layer, expert, latent)."""
    pairs: npt.NDArray[np.int64]
    """Experts that are chosen together beyond what the factors say, shape (layer, pair, 2)."""
    pair_mixing: Floats
    """Share of the partner's score that is added to each, shape (layer, pair). Scores of a pair
    that correlate by r do so by (2 w + r (1 + w^2)) / (1 + w^2 + 2 w r) afterwards."""
    mixed: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """Factors on latents of several scales, shape (layer, expert, latent); no layers for none."""
    shares: Floats = field(default_factory=lambda: np.zeros((0, len(SCALES))))
    """Share of each scale in the variance of each of those, shape (latent, scale); rows sum to
    1, up to rounding."""
    slow: float = 0.98
    """Correlation of the slow latents from token to token."""
    drift: float = 0.98
    """Correlation of the drift latents from request to request."""
    num_types: int = 0
    """Token types (a vocabulary) that token latents are drawn from; 0 for a new one each time."""
    type_exponent: float = 1.0
    """Zipf exponent of the token types' frequencies."""
    prompt_len: tuple[int, ...] = (0,)
    """Equidistant quantiles of the prompt lengths of requests, in tokens."""
    num_tokens: tuple[int, ...] = (512,)
    """Equidistant quantiles of the recorded tokens of a request."""
    num_requests: int = 1
    """Requests of the trace that was fitted."""
    source: dict[str, str] = field(default_factory=dict)
    """Origin of the numbers."""

    @property
    def num_layers(self) -> int:
        """MoE layers."""
        return int(self.bias.shape[0])

    @property
    def num_experts(self) -> int:
        """Routed experts of a layer."""
        return int(self.bias.shape[1])

    @property
    def num_numbers(self) -> int:
        """Numbers in biases, factors and pairs."""
        factors = sum(f.size for f in self.factors.values())
        mixed = self.mixed.size + self.shares.size
        return self.bias.size + factors + mixed + self.private.size + 3 * self.pair_mixing.size

    def loadings(self, layer: int) -> Floats:
        """Factors on all latents that layers share, shape (expert, latent).

        Parameters
        ----------
        layer
            Position among the MoE layers.
        """
        parts = [self.factors[name][layer] for name in SCALES]
        return np.concatenate([*parts, *self.mixed[layer : layer + 1]], axis=1)

    def shared_variance(self) -> dict[str, Floats]:
        """Share of each expert's variance by origin, each of shape (layer, expert).

        Returns
        -------
        By scale, and ``"private"``; before pairs are mixed.
        """
        shares = {name: (f**2).sum(axis=2) for name, f in self.factors.items()}
        for scale, name in enumerate(SCALES if self.shares.size else ()):
            shares[name] = shares[name] + self.mixed**2 @ self.shares[:, scale]
        shares["private"] = (self.private**2).sum(axis=2)
        return shares

    def noise(self) -> Floats:
        """Standard deviation of each expert's own noise, shape (layer, expert)."""
        shared = np.sum([(f**2).sum(axis=2) for f in self.factors.values()], axis=0)
        shared = shared + (self.private**2).sum(axis=2)
        if self.mixed.size:
            shared = shared + (self.mixed**2).sum(axis=2)
        # Rounding of the file may lift a sum over its limit; the rest of noise stays.
        noise: Floats = np.sqrt(np.maximum(1 - shared, 1 - MAX_SHARED))
        return noise


def normal_quantile(share: Floats) -> Floats:
    """Bias that makes a standard normal score positive with this probability.

    Parameters
    ----------
    share
        Of tokens; kept 1e-5 away from none and all.

    Examples
    --------
    >>> normal_quantile(np.array([0.5, 0.975])).round(2).tolist()
    [0.0, 1.96]
    """
    inverse = np.frompyfunc(statistics.NormalDist().inv_cdf, 1, 1)
    return np.asarray(inverse(np.clip(share, 1e-5, 1 - 1e-5)), np.float64)


def sparse(values: Floats) -> Floats:
    """Make mixed latents of standard normal ones: quiet for most, strong for a few.

    Parameters
    ----------
    values
        Standard normal, any shape.

    Returns
    -------
    Of mean 0 and variance 1.

    Examples
    --------
    >>> drawn = sparse(np.random.default_rng(0).standard_normal(10**6))
    >>> round(float(drawn.mean()), 2), round(float(drawn.std()), 2), round(float(drawn.min()), 2)
    (0.0, 1.0, -0.41)
    """
    over = 1 - statistics.NormalDist().cdf(QUIET)
    density = statistics.NormalDist().pdf(QUIET)
    mean = (1 + QUIET**2) * over - QUIET * density
    square = (QUIET**4 + 6 * QUIET**2 + 3) * over - (QUIET**3 + 5 * QUIET) * density
    made: Floats = (np.maximum(values - QUIET, 0) ** 2 - mean) / np.sqrt(square - mean**2)
    return made


def fast_correlation(distance: int) -> float:
    """Correlation of the fast latents of two tokens of a request.

    Parameters
    ----------
    distance
        In tokens, 0 and more.

    Examples
    --------
    >>> [round(fast_correlation(distance), 2) for distance in range(4)]
    [1.0, 0.62, 0.14, 0.0]
    """
    kernel = np.array(FAST_KERNEL)
    overlap = kernel[distance:] @ kernel[: max(len(kernel) - distance, 0)]
    return float(overlap / (kernel @ kernel))


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
