"""SGLang's expert-distribution recorder (python/sglang/srt/eplb/expert_distribution.py): ``.pt``.

Checked against SGLang 0.5.23.

per_token and per_pass: a file for each rank, with ``records`` and ``last_physical_to_logical_map``;
ids are physical experts. ``topk_ids_of_layer`` is (layer, token, 8), unused slots -1, and so are
the layers of other pipeline stages. stat: ``logical_count`` (step, layer, expert), added up over
all ranks before one of them writes it. Responses are read by
:mod:`tracegen.importers.responses`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers import files
from tracegen.importers.counts import count_rows, read_counts
from tracegen.importers.equal_ranks import replica_notice, same_tokens
from tracegen.importers.load_files import holds_loads
from tracegen.importers.options import ImportOptions
from tracegen.importers.replicas import Rank, RankPass, in_order, merge
from tracegen.importers.responses import SGLANG, read_responses
from tracegen.importers.routed_rows import UNTOLD, RoutedRows
from tracegen.importers.values import integer, records
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.tables import DECODE, PREFILL

Dumps = list[tuple[Path, dict[str, Any]]]

EXTEND, DECODE_ONLY, MIXED, IDLE = 1, 2, 3, 4
"""Values of SGLang's ForwardMode that are the same in all its versions."""
DRAFTS = {
    5: f"draft tokens under verification (forward_mode 5) {UNTOLD}",
    6: "passes of a draft model (speculative decoding, forward_mode 6)",
}
"""Further values, with what is said of their rows, which are left out."""


def read_sglang(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Recorder files of all ranks, or responses.

    Parameters
    ----------
    paths
        ``.pt`` files of one kind, ``.json``/``.jsonl`` of responses, or files of loads.
    options
        Sizes; ``topk`` for counts, ``num_layers`` and ``topk`` for responses; ``tp`` where it
        cannot be seen which ranks had the same tokens.

    Raises
    ------
    UserError
        If a file is none of them.
    """
    if holds_loads(paths[0]):
        return read_counts(paths, options)
    if paths[0].suffix != ".pt":
        return read_responses(SGLANG, paths, options)
    dumps = [(path, files.load_tensors(path)) for path in paths]
    for path, dump in dumps:
        if not isinstance(dump, dict) or "records" not in dump:
            msg = f"{path}: neither 'records' nor 'logical_count': no file of the recorder"
            raise UserError(msg)
    found = [one for path, dump in dumps for one in _records(path, dump)]
    if found and not any("topk_ids_of_layer" in record for record in found):
        return _passes(dumps, options)
    return _tokens(dumps, options)


def _records(path: Path, dump: dict[str, Any]) -> list[dict[str, Any]]:
    """Passes of a file."""
    return records(dump.get("records", []), f"{path}: records")


def _logical(dump: dict[str, Any], path: Path) -> Array:
    """Logical expert of each physical one, (layer, physical)."""
    found = dump.get("last_physical_to_logical_map")
    if found is None:
        msg = f"{path}: no last_physical_to_logical_map, so physical ids cannot be mapped"
        raise UserError(msg)
    return files.integers(found, 2, f"{path}: last_physical_to_logical_map")


def _passes(dumps: Dumps, options: ImportOptions) -> RoutedRows:
    """per_pass: counts of physical experts, one step a forward pass."""
    steps: dict[int, dict[int, Array]] = defaultdict(dict)
    experts = max(int(_logical(dump, path).max()) for path, dump in dumps) + 1
    for path, dump in dumps:
        to_logical = _logical(dump, path)
        for place, record in enumerate(_records(path, dump)):
            where = f"{path}: record {place}"
            count = files.integers(record.get("global_physical_count"), 2, str(path))
            if count.shape != to_logical.shape:
                msg = f"{path}: {count.shape} counts, the map is for {to_logical.shape}"
                raise UserError(msg)
            logical = np.zeros((len(count), experts), np.int64)
            layers = np.broadcast_to(np.arange(len(count))[:, None], count.shape)
            np.add.at(logical, (layers, to_logical), count)
            number = integer(record, "forward_pass_id", where, place)
            rank = integer(record, "rank", where, 0)
            _once(number in steps[rank], path, number, rank)
            steps[rank][number] = logical
    numbers = sorted({number for parts in steps.values() for number in parts})
    shapes = {part.shape for parts in steps.values() for part in parts.values()}
    if len(shapes) != 1:
        msg = f"{dumps[0][0]}: the ranks' counts differ in (layers, experts): {sorted(shapes)}"
        raise UserError(msg)
    none = np.zeros(next(iter(shapes)), np.int64)
    counts = {rank: np.stack([parts.get(number, none) for number in numbers]) for rank, parts in steps.items()}
    rows = {rank: part.reshape(-1, part.shape[2]) for rank, part in counts.items()}
    first = same_tokens(rows, options.tp)
    kept = [counts[rank] for rank in sorted(set(first.values()))]
    routed = count_rows(np.sum(kept, axis=0), options)
    routed.notices += replica_notice(first, rows)
    return routed


def _once(there: bool, path: Path, number: int, rank: int) -> None:
    """Refuse a pass that another file, or the same, has already."""
    if there:
        msg = f"{path}: pass {number} of rank {rank} is there twice: a file given twice, or files of several runs?"
        raise UserError(msg)


def _tokens(dumps: Dumps, options: ImportOptions) -> RoutedRows:
    """per_token: ids of every token, ranks side by side in each forward pass."""
    found: dict[int, dict[int, RankPass]] = defaultdict(dict)
    changed = experts = 0
    for path, dump in dumps:
        to_logical = _logical(dump, path)
        experts = max(experts, int(to_logical.max()) + 1)
        for place, record in enumerate(_records(path, dump)):
            where = f"{path}: record {place}"
            mode = integer(record, "forward_mode", where, EXTEND)
            rank = integer(record, "rank", where, 0)
            passes = found[rank]  # one that is idle in all of them was there all the same
            if mode == IDLE:
                continue
            ids = files.integers(record.get("topk_ids_of_layer"), 3, f"{path}: topk_ids_of_layer")
            if ids.max(initial=-1) >= to_logical.shape[1] or len(ids) != len(to_logical):
                most = ids.max(initial=-1)
                msg = f"{path}: {len(ids)} layers with physical experts up to {most}; the map is of {to_logical.shape}"
                raise UserError(msg)
            layers = np.arange(len(ids))[:, None, None]
            mapped = np.where(ids >= 0, to_logical[layers, np.maximum(ids, 0)], -1)
            changed += int((mapped != ids).sum())
            number = integer(record, "forward_pass_id", where, place)
            _once(number in passes, path, number, rank)
            columns = _columns(record, mode, ids.shape[1], f"{path}: pass {number}")
            passes[number] = RankPass(number, mapped.transpose(1, 0, 2), columns)
    if not any(found.values()):
        msg = f"{dumps[0][0]}: no records"
        raise UserError(msg)
    ranks, notices = merge(
        [_rank(number, passes) for number, passes in found.items()],
        options,
        local_layers=False,
        known=_same_tokens(found),
    )
    left_out = _without_drafts(ranks)
    if not any(rank.passes for rank in ranks):
        told = "; ".join(f"{rows} rows are {why}" for why, rows in left_out.items())
        msg = f"{dumps[0][0]}: no records to import: {told}"
        raise UserError(msg)
    routed = _assemble(ranks)
    recorded = range(max(len(_logical(dump, path)) for path, dump in dumps))
    routed.left_out = tuple(sorted(set(recorded) - set(ranks[0].layers)))
    routed.num_experts = experts
    routed.facts["physical_ids_mapped"] = changed
    routed.notices += notices
    routed.notices.append(
        f"{changed} physical ids differ from their logical experts and were mapped with the last "
        "map of the recording, which may have changed meanwhile. Requests are not recorded: rows "
        "were joined by their positions."
    )
    routed.dropped |= left_out
    return routed


def _without_drafts(ranks: list[Rank]) -> dict[str, int]:
    """Take passes out whose rows are no tokens of a request; how many rows, and why."""
    left_out: dict[str, int] = defaultdict(int)
    for rank in ranks:
        kept = []
        for part in rank.passes:
            mode = int(part.columns["mode"].max(initial=EXTEND))
            if mode < IDLE:
                kept.append(part)
                continue
            why = DRAFTS.get(mode, f"forward_mode {mode}, which differs between versions")
            left_out[why] += len(part.ids)
        rank.passes = kept
    return left_out


def _columns(record: Mapping[str, Any], mode: int, tokens: int, where: str) -> dict[str, Array]:
    """Position, sequence within the pass, phase and input id of each token of a record."""
    position = files.integers(record.get("positions"), 1, f"{where}: positions")[:tokens]
    lengths = np.ones(tokens, np.int64)
    if mode != DECODE_ONLY and record.get("extend_seq_lens") is not None:
        stated = np.asarray(record["extend_seq_lens"], object)
        if stated.size:
            lengths = files.integers(stated.tolist(), 1, f"{where}: extend_seq_lens")
    if (lengths < 0).any() or lengths.sum() != tokens or position.size != tokens:
        msg = f"{where}: {tokens} tokens, {position.size} positions in sequences of {lengths.sum()}"
        raise UserError(msg)
    sequence = np.repeat(np.arange(lengths.size), lengths)
    decode = np.full(tokens, mode == DECODE_ONLY)
    if mode == MIXED:
        # A running request adds one token to the batch; a chunk of a prompt has more.
        decode = (lengths[sequence] == 1) & (position > 0)
    columns = {
        "position": position,
        "sequence": sequence,
        "phase": np.where(decode, DECODE, PREFILL).astype(np.uint8),
        "mode": np.full(tokens, mode),
    }
    if record.get("input_ids") is not None:
        columns["token"] = files.integers(record["input_ids"], 1, f"{where}: input_ids")[:tokens]
    return columns


def _rank(number: int, passes: dict[int, RankPass]) -> Rank:
    """One process, with the layers and slots that it used."""
    if not passes:
        return Rank(number, (), [])
    order = [passes[step] for step in sorted(passes)]
    used = np.any([(part.ids >= 0).any(axis=(0, 2)) for part in order], axis=0)
    for part in order:
        part.ids = part.ids[:, used]
    return Rank(number, tuple(int(layer) for layer in np.flatnonzero(used)), order)


def _same_tokens(found: dict[int, dict[int, RankPass]]) -> Any:
    """Tell whether two ranks had the same tokens, told by their passes, positions and input ids."""
    if not all("token" in part.columns for passes in found.values() for part in passes.values()):
        return None

    def same(one: int, other: int) -> bool:
        a, b = found[one], found[other]
        return a.keys() == b.keys() and all(
            np.array_equal(a[step].columns[name], b[step].columns[name]) for step in a for name in ("position", "token")
        )

    return same


def _assemble(ranks: list[Rank]) -> RoutedRows:
    """Rows of all passes, with requests joined by position."""
    parts = in_order(ranks)
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    requests, count = [], 0
    for rank, part in parts:
        position, sequence = part.columns["position"], part.columns["sequence"]
        request = np.empty(len(part.ids), np.int64)
        bounds = np.searchsorted(sequence, np.arange(sequence.max(initial=-1) + 2))
        for begin, end in itertools.pairwise(bounds.tolist()):
            # The sequence that stopped just before this position goes on; else it is new.
            queue = waiting[rank, int(position[begin])]
            if queue and position[begin]:
                name = queue.pop(0)
            else:
                name, count = count, count + 1
            request[begin:end] = name
            waiting[rank, int(position[end - 1]) + 1].append(name)
        requests.append(request)
    lengths = [len(part.ids) for _, part in parts]
    ids = np.concatenate([part.ids for _, part in parts])
    columns = {
        name: np.concatenate([part.columns[name] for _, part in parts]) for name in ("position", "phase", "mode")
    }
    routed = RoutedRows(
        ids=ids[:, :, (ids >= 0).any(axis=(0, 1))],  # the recorder has 8 slots for every model
        request=np.concatenate(requests),
        position=columns["position"],
        phase=columns["phase"],
        step=np.repeat([part.step for _, part in parts], lengths),
        rank=np.repeat([rank for rank, _ in parts], lengths) if len(ranks) > 1 else None,
        num_ranks=len(ranks),
        layers=ranks[0].layers,
    )
    mixed = int((columns["mode"] == MIXED).sum())
    if mixed:
        routed.notices.append(
            f"{mixed} rows are of passes that mix prompts and decoding: "
            "sequences of one token were taken for decoding, longer ones for prompts."
        )
    return routed
