"""Documents of ``moereplay-result/1``, made into present ones.

The first schema had the measures among the other fields of a layer or a chain, and no spec. The
spec is made from what was recorded; the reference to the trace was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.experiments.layer.normal_form import changed_values
from replay.experiments.layer.result import RESULT_FORMAT
from replay.measure.result import Measures

Document = dict[str, Any]

_MEASURES = frozenset(Measures.model_fields)
_HASH_OF_FILE = " (SHA-256 "


def result_of_first(document: Mapping[str, Any]) -> Document:
    """Make a result of the present schema."""
    unchanged = {name: value for name, value in document.items() if name != "direction"}
    system = dict(document["system"])
    chain = document.get("chain")
    return {
        **unchanged,
        "format": RESULT_FORMAT,
        "spec": _spec(document),
        "system": {
            "name": system.pop("name"),
            "num_gpus": system.pop("num_gpus"),
            "values": system,
        },
        "layers": [_with_measures(layer) for layer in document["layers"]],
        "chain": None if chain is None else _with_measures(chain),
    }


def _with_measures(part: Mapping[str, Any]) -> Document:
    """A layer or a chain that holds its measures."""
    measures = {name: value for name, value in part.items() if name in _MEASURES}
    return {
        **{name: value for name, value in part.items() if name not in _MEASURES},
        "measures": measures,
    }


def _spec(document: Mapping[str, Any]) -> Document:
    """The settings that gave a result, as far as it says."""
    batch, scheme, chain = document["batch"], document["scheme"], document.get("chain")
    layers = document["layers"] if chain is None else chain["layers"]
    tuned = scheme.get("tuned") or []
    # Tuning begins with the options that were given.
    options = {**scheme["options"], **(tuned[0]["options"] if tuned else {})}
    if options.get("weight_passes") == 1:
        del options["weight_passes"]  # the default of that time, which nobody had to set
    system = document["system"]
    return {
        "content_id": document["trace"]["content_id"],
        "scheme": scheme["name"],
        "options": options,
        "system": system["name"],
        "overrides": changed_values(system),
        "ranks": batch["num_ranks"],
        "tokens_per_rank": batch.get("tokens_per_rank"),
        "phase": batch["phase"],
        "layer": list(dict.fromkeys(layer["layer_index"] for layer in _of_one_pass(layers))),
        "step": batch["step"],
        "steps": len({layer["step"] for layer in layers}),
        "pass": document["direction"],
        "barrier": chain is None and len(layers) > 1,
        "compare_barrier": chain is not None and chain["barrier_us"] is not None,
        "placement": document["placement"].partition(_HASH_OF_FILE)[0],
        "precision": document["precision"],
        "tune": bool(tuned),
    }


def _of_one_pass(layers: list[Document]) -> list[Document]:
    """Layers of the first step's first pass, in the order of the forward pass."""
    first = layers[0]
    chosen = [
        layer for layer in layers if (layer["step"], layer["is_backward"]) == (first["step"], first["is_backward"])
    ]
    return chosen[::-1] if first["is_backward"] else chosen
