"""``moereplay place --loads``: what the command does where loads stand for a trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from replay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from replay.experiments.place.placing import Placing
    from tracegen.importers.loads import Loads
    from tracegen.models import ModelShape

WITHOUT_TOKENS = (
    "Loads alone do not tell which experts a token has together, nor which GPU it is on: rows of "
    "an expert are divided evenly among its replicas, and rows between nodes are not known."
)
"""Said whenever a placement is made of loads."""


class Numbered(NamedTuple):
    """Numbers of the layers of a placement, for the formats that have them."""

    decoder_layers: Sequence[int]
    total: int
    """Decoder layers of the model."""


def refuse_with_loads(options: Mapping[str, object]) -> None:
    """Refuse options of batches of tokens, which loads do not have.

    Raises
    ------
    UserError
        Naming the option.
    """
    for name, value in options.items():
        if value is not None:
            message = (
                f"{name} {value}: loads have no tokens, so that --loads leaves no choice of it"
            )
            raise UserError(message)


def placed_by_loads(
    paths: Sequence[Path], model: str | None, source: Path | None, common: Mapping[str, Any]
) -> tuple[Placing, Numbered]:
    """Placement fitted to files of loads, and the numbers of its layers.

    Parameters
    ----------
    paths
        See `tracegen.importers.loads.read_loads`.
    model
        Name or file of the model's shape; None where it is not known.
    source
        Map of slots to look at.
    common
        Further arguments of `replay.experiments.place.placing_loads.fit_loads`.

    Raises
    ------
    UserError
        If files hold no loads, or a model or map does not fit them.
    """
    from replay.experiments.place.placing_loads import fit_loads
    from replay.model.work.map_arrays import WhichLayer
    from tracegen.importers.loads import read_loads

    loads = read_loads(paths)
    shape = None
    if model is not None:
        from tracegen.models import load

        shape = load(model)
        loads = _of_model(loads, shape)
    notes = [WITHOUT_TOKENS, *loads.notices]
    loads = loads.numbered(shape)
    if empty := loads.empty():
        notes.append(
            f"{len(empty)} layers count nothing and were left out: {', '.join(map(str, empty))}."
        )
    loads = loads.of_used()
    decoder = loads.layers
    if decoder is None:
        decoder = tuple(range(loads.counts.shape[1]))
        notes.append(
            f"The layers are not numbered: they were taken for decoder layers 0 to {decoder[-1]}; "
            "--model says otherwise."
        )
    numbered = Numbered(decoder, decoder[-1] + 1 if shape is None else shape.num_layers)
    total, experts = (0, ()) if shape is None else (shape.num_layers, shape.moe_layer_index)
    settings = dict(common)
    settings["num_ranks"] = settings["num_ranks"] or 8
    settings["num_slots"] = settings["num_slots"] or loads.num_experts
    if settings["num_groups"] is None:
        settings["num_groups"] = 1 if shape is None else shape.n_group
    placing = fit_loads(
        loads.counts,
        title=f"loads of {', '.join(path.name for path in paths)}",
        source=f"file:{source}",
        layers=[
            WhichLayer(position, number, total, experts, len(decoder))
            for position, number in enumerate(decoder)
        ],
        **settings,
    )
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return placing, numbered


def _of_model(loads: Loads, shape: ModelShape) -> Loads:
    """Loads of the experts of a model that have weights, each held against its top-k."""
    from dataclasses import replace

    from tracegen.trace.drawn import rows_needed

    loads = loads.of_experts(shape.num_experts, f"--model {shape.name}")
    try:
        rows_needed(loads.counts, shape.topk)
    except UserError as error:
        message = f"--model {shape.name}: {error}"
        raise UserError(message) from None
    return replace(loads, counts=loads.counts[:, :, : shape.num_experts - shape.num_zero_experts])
