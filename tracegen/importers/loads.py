"""Loads without tokens: how many tokens chose each expert, from the files that tools write.

=================== ==============================================================================
written by          layout
=================== ==============================================================================
SGLang              ``logical_count`` (layer, expert) or (step, layer, expert), .pt or .json
SGLang before 0.4.6 CSV ``layer_id,expert_id,count``, a file for each rank
TensorRT-LLM        folder of EXPERT_STATISTIC_PATH: ``meta_info.json`` and
                    ``rank{r}.safetensors``, tensors ``{iteration}_{layer}`` (expert,)
MindSpeed-RL        JSON ``{layer: {expert: count}}``
vLLM's EPLB         ``expert_load`` of slots with ``p2l_map`` (JSON lines, pull request 41141), or
                    tensors of its state beside ``physical_to_logical_map``
anything            arrays (expert,), (layer, expert), (step, layer, expert) as .npy, .npz, .pt,
                    .safetensors or JSON lists; tables as .csv, .tsv or .parquet, a row for each
                    layer and expert or a column for each expert
=================== ==============================================================================

Counts do not tell which experts a token has together, so no reader of this module makes tokens;
:mod:`tracegen.importers.counts` draws some that have exactly these loads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tracegen.importers import files, load_values
from tracegen.importers.equal_ranks import replica_notice, same_tokens
from tracegen.importers.folders import LOADS, files_of
from tracegen.importers.load_files import load_parts
from tracegen.importers.load_values import LoadPart
from tracegen.importers.safetensors import load_safetensors
from tracegen.importers.values import few
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

if TYPE_CHECKING:
    from tracegen.models import ModelShape

SUSPECTED_ROWS = 8
"""Rows of numbers from which it can be told that they are ids."""


@dataclass(frozen=True)
class Loads:
    """Tokens of each expert, as counted elsewhere."""

    counts: Array
    """int64 (step, layer, expert)."""
    layers: tuple[int, ...] | None = None
    """Number of each layer, ascending; None where the file has none."""
    topk: int | None = None
    """Experts per token, where the file says so."""
    is_sparse: bool = False
    """Whether experts that no token chose may be absent from the files."""
    facts: dict[str, object] = field(default_factory=dict)
    """What else the files say, for the provenance of what is made of them."""
    notices: tuple[str, ...] = ()
    """Sentences with numbers: what was assumed, or taken once."""

    @property
    def num_experts(self) -> int:
        """Experts of a layer."""
        return int(self.counts.shape[2])

    def per_layer(self) -> Array:
        """Counts of all steps together, int64 (layer, expert)."""
        total: Array = self.counts.sum(axis=0)
        return total

    def empty(self) -> tuple[int, ...]:
        """Numbers of the layers in which nothing was counted: dense ones, or not recorded."""
        numbers = self.layers or tuple(range(self.counts.shape[1]))
        used: Array = np.asarray(self.counts.any(axis=(0, 2)))
        return tuple(number for number, there in zip(numbers, used, strict=True) if not there)

    def of_used(self) -> Loads:
        """The loads of the layers in which anything was counted, each with its number."""
        empty = set(self.empty())
        if not empty:
            return self
        numbers = self.layers or tuple(range(self.counts.shape[1]))
        used = [place for place, number in enumerate(numbers) if number not in empty]
        layers = tuple(numbers[place] for place in used)
        return replace(self, counts=self.counts[:, used], layers=layers)

    def of_experts(self, num_experts: int | None, whose: str) -> Loads:
        """The same loads over `num_experts` experts; one that a sparse file does not name has none.

        Parameters
        ----------
        num_experts
            Experts of a layer; None takes those of the file.
        whose
            What has so many, for errors.

        Raises
        ------
        UserError
            If the file has another number of them.
        """
        if num_experts is None or num_experts == self.num_experts:
            return self
        if num_experts < self.num_experts or not self.is_sparse:
            msg = f"the loads are of {self.num_experts} experts; {whose} has {num_experts}"
            raise UserError(msg)
        more = ((0, 0), (0, 0), (0, num_experts - self.num_experts))
        note = f"Experts {self.num_experts} to {num_experts - 1} are not named: they have no tokens."
        counts = np.pad(self.counts, more)
        return replace(self, counts=counts, notices=(*self.notices, note))

    def number_layers(self, shape: ModelShape | None) -> Loads:
        """The same loads with decoder layers, where the model is known that has them.

        Parameters
        ----------
        shape
            Of the model.

        Raises
        ------
        UserError
            If the model has not these layers with experts.
        """
        if shape is None:
            return self
        experts, numbers, count = shape.moe_layer_index, self.layers, self.counts.shape[1]
        places = tuple(range(count)) if numbers is None else numbers
        if places == tuple(range(len(experts))):
            return replace(self, layers=tuple(experts))
        is_whole = numbers is not None or count == shape.num_layers
        if is_whole and set(places) - set(self.empty()) <= set(experts):
            return replace(self, layers=places)
        told = f"{count} layers" if numbers is None else f"layers {few(numbers)}"
        msg = f"the loads are of {told}; --model {shape.name} has {len(experts)} layers with experts, {few(experts)}"
        raise UserError(msg)


def read_loads(paths: Sequence[str | Path], tp: Callable[[], int | None] | None = None) -> Loads:
    """Read the loads of one recording.

    Parameters
    ----------
    paths
        Files of :data:`~tracegen.importers.folders.LOADS`, a folder of them, or one of
        TensorRT-LLM. Files of ranks are added up, those of ranks with the same tokens taken once;
        other files follow one another as steps.
    tp
        Called where there are several ranks: gives the number of neighbouring ranks that hold the
        same tokens, or None to find out. No function where the user has no option to say it.

    Raises
    ------
    UserError
        If a file holds no loads, counts are none (negative, fractions, text), or files do not fit.
    """
    if not paths:
        msg = "no file of loads was given"
        raise UserError(msg)
    found = files_of([Path(path) for path in paths], "counts")
    if found[0].is_dir():
        loads = _statistics_folder(found, tp)
    else:
        parts = [(path, part) for path in found for part in load_parts(path)]
        of_ranks = any(part.rank is not None for _, part in parts)
        each = [part for _, part in parts]
        loads = _added_up(each, tp, found[0]) if of_ranks else _in_a_row(each, len(found), found[0])
    if not loads.counts.any():
        msg = f"{found[0]}: the counts are empty: no token was counted in any layer"
        raise UserError(msg)
    return _with_suspicion(loads)


def is_named_so(path: Path) -> bool:
    """Tell whether a path that might name a trace is a folder, or named as files of loads are.

    Parameters
    ----------
    path
        Of either.
    """
    return path.is_dir() or path.name.removesuffix(".gz").lower().endswith(LOADS)


def _added_up(parts: list[LoadPart], tp: Callable[[], int | None] | None, first: Path) -> Loads:
    """Loads of ranks together; those of ranks that had the same tokens are taken once."""
    if any(part.rank is None for part in parts):
        msg = f"{first}: some of these files are of one rank, others of all"
        raise UserError(msg)
    numbers = [part.rank for part in parts if part.rank is not None]
    if len(set(numbers)) < len(numbers):
        msg = f"{first}: rank {max(numbers, key=numbers.count)} is there twice: several recordings?"
        raise UserError(msg)
    aligned, layers = _align(parts)
    rows = {rank: part.reshape(-1, part.shape[2]) for rank, part in zip(numbers, aligned, strict=True)}
    same = _first_of(rows, tp)
    kept = [aligned[numbers.index(rank)] for rank in sorted(set(same.values()))]
    counts = np.sum(kept, axis=0)
    is_sparse = any(part.is_sparse for part in parts)
    told = tuple(replica_notice(same, rows, has_tp=tp is not None))
    return Loads(counts, layers, is_sparse=is_sparse, notices=told)


def _in_a_row(parts: list[LoadPart], num_files: int, first: Path) -> Loads:
    """Loads of files of all ranks: equal ones are one recording, others go on."""
    different = list({(p.counts.shape, p.counts.tobytes()): p for p in parts}.values())
    sources = {part.source for part in parts if part.source is not None}
    if num_files == 1:
        different = parts  # two steps may well be the same
    elif len(different) > 1 and len(sources) > 1:
        msg = (
            f"{first}: the counts of {len(sources)} ranks differ, though a recorder adds up those "
            "of all ranks before it writes: files of several recordings? Give one at a time"
        )
        raise UserError(msg)
    if len({part.counts.shape[1:] for part in different}) != 1:
        msg = f"{first}: the counts of other files differ in layers or experts"
        raise UserError(msg)
    notices = tuple(dict.fromkeys(note for part in different for note in part.notices))
    if len(different) < len(parts):
        note = (
            f"{num_files} files hold {len(different)} recording(s): a recorder's counts are those "
            "of all ranks together, so equal ones were taken once."
        )
        notices += (note,)
    counts = np.concatenate([part.counts for part in different])
    is_sparse = different[0].is_sparse
    return Loads(counts, different[0].layers, is_sparse=is_sparse, notices=notices)


def _align(parts: list[LoadPart]) -> tuple[list[Array], tuple[int, ...] | None]:
    """Counts of all parts over the same steps, layers and experts, zero where one has none."""
    shape = np.max([part.counts.shape for part in parts], axis=0)
    if any(part.layers is None for part in parts):
        layers, places = None, [np.arange(part.counts.shape[1]) for part in parts]
    else:
        layers = tuple(sorted({number for part in parts for number in part.layers or ()}))
        places = [np.searchsorted(layers, part.layers or ()) for part in parts]
        shape[1] = len(layers)
    found = []
    for part, place in zip(parts, places, strict=True):
        counts = np.zeros(shape, np.int64)
        counts[: part.counts.shape[0], place, : part.counts.shape[2]] = part.counts
        found.append(counts)
    return found, layers


def _with_suspicion(loads: Loads) -> Loads:
    """Loads, and whether they look like ids: no two alike in a row, and no sum in common.

    All layers of a step route the same tokens, so that their counts have one sum.
    """
    counts = np.sort(loads.of_used().counts, axis=2)
    steps, layers, _ = counts.shape
    sums = counts.sum(axis=2)
    is_alike = (counts[..., 1:] == counts[..., :-1]).any()
    has_sum = (sums.max(axis=1) == sums.min(axis=1)).mean() >= 0.5
    if steps * layers < SUSPECTED_ROWS or is_alike or has_sum:
        return loads
    note = (
        "Layers of one step have unequal sums, and no count is there twice among its "
        f"{counts.shape[2]} experts, as in expert ids: they were taken for counts."
    )
    return replace(loads, notices=(*loads.notices, note))


def _statistics_folder(paths: list[Path], tp: Callable[[], int | None] | None) -> Loads:
    """Statistics of TensorRT-LLM, of all ranks together."""
    folder = paths[0]
    if len(paths) > 1 or not regular.exists(folder / "meta_info.json"):
        msg = (
            f"{folder}: of folders, one of TensorRT-LLM's statistics is read, which has a "
            "meta_info.json; give the files of others"
        )
        raise UserError(msg)
    meta = files.load_json(files.load_text(folder / "meta_info.json"), "meta_info.json")
    try:
        experts, topk = int(meta["num_experts"]), int(meta["num_experts_per_token"])
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{folder / 'meta_info.json'}: num_experts and num_experts_per_token are needed"
        raise UserError(msg) from error
    found: dict[str, dict[tuple[int, int], Array]] = {}
    ranks = sorted(folder.glob("rank*.safetensors"))
    if not ranks:
        msg = f"{folder}: no rank*.safetensors"
        raise UserError(msg)
    for path in ranks:
        own = found[path.stem] = {}
        for name, tensor in load_safetensors(path).items():
            match = re.fullmatch(r"(\d+)_(\d+)", name)
            if match is None or tensor.shape != (experts,) or tensor.dtype.kind not in "iu":
                msg = f"{path}: tensor {name!r} {tensor.shape}; iteration_layer ({experts},) is due"
                raise UserError(msg)
            own[int(match[1]), int(match[2])] = load_values.whole(tensor, f"{path}: {name}")
    summed, notices = _sum_ranks(found, tp)
    iterations, layers = (sorted({key[place] for key in summed}) for place in (0, 1))
    missing = [(i, layer) for i in iterations for layer in layers if (i, layer) not in summed]
    if missing:
        msg = f"{folder}: iteration {missing[0][0]} lacks layer {missing[0][1]}"
        raise UserError(msg)
    counts = np.array([[summed[i, layer] for layer in layers] for i in iterations])
    facts: dict[str, object] = {"iterations": [iterations[0], iterations[-1]]} if iterations else {}
    counts = counts.reshape(-1, len(layers), experts)
    return Loads(counts, tuple(layers), topk, facts=facts, notices=notices)


def _sum_ranks(
    found: Mapping[str, dict[tuple[int, int], Array]], tp: Callable[[], int | None] | None
) -> tuple[dict[tuple[int, int], Array], tuple[str, ...]]:
    """Counts of all ranks, those of the same tokens taken once; stages hold other layers.

    Under tensor parallelism every rank counts all tokens; under data parallelism its own.
    """
    order = sorted(found, key=lambda name: (int(re.sub(r"\D", "", name) or -1), name))
    numbers = {rank: found[name] for rank, name in enumerate(order)}
    rows: dict[int, Array] = {}
    first: dict[int, int] = {}
    for keys in dict.fromkeys(tuple(sorted(numbers[rank])) for rank in sorted(numbers)):
        alike = {
            rank: np.stack([parts[key] for key in keys])
            for rank, parts in numbers.items()
            if tuple(sorted(parts)) == keys and keys
        }
        rows |= alike
        first |= _first_of(alike, tp if len(numbers) > 1 else None)
    summed: dict[tuple[int, int], Array] = {}
    for rank in sorted(set(first.values())):
        for key, counts in numbers[rank].items():
            summed[key] = summed.get(key, 0) + counts
    return summed, tuple(replica_notice(first, rows, has_tp=tp is not None))


def _first_of(rows: Mapping[int, Array], tp: Callable[[], int | None] | None) -> dict[int, int]:
    """For each rank, the lowest one that had the same tokens, as the user says or as it looks."""
    stated = tp() if tp is not None and len(rows) > 1 else None
    return same_tokens(rows, stated, has_tp=tp is not None)
