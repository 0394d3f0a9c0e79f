"""From the journals of a capture to a trace file, with bounded memory.

Rows of all ranks are put in step order. The large arrays live in temporary files beside
the target, so that a capture larger than memory can be finished.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.file.journal import SUFFIX, Journal, open_journal
from tracegen.models import ModelShape
from tracegen.shared import output
from tracegen.shared.errors import UserError
from tracegen.trace import provenance
from tracegen.trace.arrays import Array
from tracegen.trace.checks import boundaries
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import (
    DECODE,
    RequestTable,
    SlotOrder,
    TokenTable,
    TraceInfo,
    TraceModel,
    expert_dtype,
    stated_ranks,
)

SMALL = ("step", "request", "position", "phase", "token_id")
"""Columns over tokens only; they are kept in memory."""
LARGE = ("expert_ids", "gate_weights", "flags")


def recover(journals: Sequence[str | Path], out: str | Path | None, *, overwrite: bool) -> tuple[Path, str]:
    """Make a trace of journals, complete or not; see :func:`tracegen.capture.recover`.

    Parameters
    ----------
    journals
        Paths, one per rank.
    out
        Trace file, or None for the name the capture would have used.
    overwrite
        Whether it may be replaced.

    Raises
    ------
    UserError
        If they are no journals, or not of one capture.
    """
    opened = sorted((open_journal(path) for path in journals), key=lambda j: int(j.head["rank"]))
    if not opened:
        msg = "no journal was given"
        raise UserError(msg)
    ranks = [journal.head["rank"] for journal in opened]
    if len(set(ranks)) < len(ranks):
        msg = f"two journals are of the same rank: {', '.join(str(j.path) for j in opened)}"
        raise UserError(msg)
    target = Path(out) if out is not None else default_target(opened[0].path)
    return target, finish(opened, target, overwrite=overwrite)


def default_target(journal: Path) -> Path:
    """Trace that a journal is the beginning of.

    Parameters
    ----------
    journal
        Path of the journal.

    Examples
    --------
    >>> default_target(Path("run/a.h5.rank3.partial")).name
    'a.h5'
    """
    name = journal.name.removesuffix(SUFFIX)
    stem, dot, last = name.rpartition(".")
    if dot and last.startswith("rank") and last[4:].isdigit():
        name = stem
    return journal.with_name(name)


def finish(journals: list[Journal], target: Path, *, overwrite: bool) -> str:
    """Write the trace that the journals of all ranks make together.

    Parameters
    ----------
    journals
        In order of rank.
    target
        Trace file.
    overwrite
        Whether it may be replaced.

    Returns
    -------
    The content id.

    Raises
    ------
    UserError
        If there are no rows, the journals do not belong together, or the file exists.
    """
    from tracegen.file.writer import write

    if output.replaces(target) and not overwrite:
        msg = f"{target} exists; overwrite=True replaces it"
        raise UserError(msg)
    output.check(target)
    first = journals[0]
    for journal in journals[1:]:
        if journal.layout != first.layout or journal.head["session"] != first.head["session"]:
            msg = f"{journal.path} and {first.path} are not of one capture"
            raise UserError(msg)
    num_rows = sum(journal.num_rows for journal in journals)
    if not num_rows:
        msg = f"{first.path}: no rows were captured"
        raise UserError(msg)
    journals, replicas = _without_replicas(journals)
    prefix = f".{target.name[:40]}."
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as folder:
            trace = _assemble(journals, Path(folder), replicas)
            digest = write(trace, target, overwrite=overwrite)
            del trace  # the mapped files must be closed before they are removed
    except OSError as error:
        msg = f"cannot write {target}: {error.strerror or error}"
        raise UserError(msg) from error
    return digest


def _without_replicas(journals: list[Journal]) -> tuple[list[Journal], int]:
    """Keep one rank of each tensor-parallel group: its ranks record the same rows.

    Groups must be of one size; equal batches on some data-parallel ranks are still batches.
    """
    groups: dict[bytes, list[Journal]] = {}
    for journal in journals:
        groups.setdefault(_fingerprint(journal), []).append(journal)
    sizes = {len(group) for group in groups.values()}
    if len(sizes) != 1 or sizes == {1}:
        return journals, 0
    return [group[0] for group in groups.values()], len(journals) - len(groups)


def _fingerprint(journal: Journal) -> bytes:
    """Digest of what was routed, whatever the blocks it was written in."""
    hashes = [hashlib.sha256() for _ in range(3)]
    for block in journal.read():
        rows = (block["expert_ids"].transpose(1, 0, 2), block["step"], block["position"])
        for digest, part in zip(hashes, rows, strict=True):
            digest.update(np.ascontiguousarray(part).data)
    return b"".join(digest.digest() for digest in hashes)


def _assemble(journals: list[Journal], folder: Path, replicas: int) -> RoutingTrace:
    """The trace, its large arrays mapped from files in a folder."""
    layout, head = journals[0].layout, journals[0].head
    small, rank, order = _small_columns(journals)
    num_rows = order.size
    body = (layout.num_layers, num_rows, layout.topk)
    ids = _map_zeros(folder / "ids", expert_dtype(layout.num_experts), body)
    weights = _map_zeros(folder / "weights", np.dtype(np.float16), body) if layout.weights else None
    flags = _map_zeros(folder / "flags", np.dtype(np.uint8), body[:2])
    target = np.empty(num_rows, np.int64)
    target[order] = np.arange(num_rows)
    falling, sums, start = True, [math.inf, -math.inf], 0
    for journal in journals:
        for block in journal.read():
            rows = target[start : start + len(block["step"])]
            start += rows.size
            ids[:, rows] = block["expert_ids"]
            flags[:, rows] = block["flags"]
            if weights is not None:
                recorded = block["gate_weights"]
                weights[:, rows] = recorded
                falling &= bool((recorded[..., 1:] <= recorded[..., :-1]).all())
                total = recorded.sum(axis=-1, dtype=np.float32)
                full = total[(block["expert_ids"] != np.iinfo(ids.dtype).max).all(axis=-1)]
                if full.size:
                    sums = [min(sums[0], float(full.min())), max(sums[1], float(full.max()))]
    columns = {name: column[order] for name, column in small.items()}
    tokens = TokenTable(**columns, rank=rank[order] if len(journals) > 1 else None)
    return RoutingTrace(
        model=_model(head),
        moe_layer_index=np.array(head["moe_layer_index"], np.uint16),
        expert_ids=ids,
        gate_weights=weights,
        flags=flags if flags.any() else None,
        tokens=tokens,
        steps_indptr=boundaries(tokens.step),
        requests=_requests(tokens, str(head.get("dataset", ""))),
        info=dataclasses.replace(
            _info(journals, replicas, falling, sums if weights is not None else None),
            num_ranks=stated_ranks(tokens.rank, len(journals)),
        ),
    )


def _map_zeros(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array of zeros in a new file."""
    path.touch()
    output.set_aside(path, math.prod(shape) * dtype.itemsize)
    return np.memmap(path, dtype, "r+" if path.stat().st_size else "w+", shape=shape)


def _small_columns(journals: list[Journal]) -> tuple[dict[str, Array], Array, Array]:
    """Columns over tokens of all ranks, the rank of each row, and the order by step."""
    parts: dict[str, list[Array]] = {}
    ranks = []
    first_request = 0
    for number, journal in enumerate(journals):
        highest = -1
        for block in journal.read():
            ranks.append(np.full(len(block["step"]), number, np.uint16))
            highest = max(highest, int(block["request"].max(initial=0)))
            for name in SMALL:
                if name in block:
                    column = block[name]
                    if name == "request":
                        # Each rank numbers its own requests from 0.
                        column = column + np.uint32(first_request)
                    parts.setdefault(name, []).append(column.astype(column.dtype.newbyteorder("="), copy=False))
        first_request += highest + 1
    columns = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return columns, np.concatenate(ranks), np.argsort(columns["step"], kind="stable")


def _requests(tokens: TokenTable, dataset: str) -> RequestTable:
    """Requests as their rows tell."""
    ids = np.unique(tokens.request)
    index = np.searchsorted(ids, tokens.request)
    prompt_len = np.zeros(ids.size, np.int64)
    prompt = (tokens.phase == 0) | (tokens.phase == 2)
    np.maximum.at(prompt_len, index[prompt], tokens.position[prompt].astype(np.int64) + 1)
    output_len = np.bincount(index[tokens.phase == DECODE], minlength=ids.size)
    return RequestTable(
        id=ids.astype(np.uint32),
        prompt_len=prompt_len.astype(np.uint32),
        output_len=output_len.astype(np.uint32),
        dataset=np.full(ids.size, dataset) if dataset else None,
    )


def _model(head: dict[str, Any]) -> TraceModel:
    """Model header as the journal holds it."""
    values = dict(head["model"])
    shape = values.pop("shape", None)
    return TraceModel(**values, shape=None if shape is None else ModelShape(**_tuples(shape)))


def _tuples(shape: dict[str, Any]) -> dict[str, Any]:
    """JSON lists as the tuples they were."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in shape.items()}


def _info(journals: list[Journal], replicas: int, falling: bool, sums: list[float] | None) -> TraceInfo:
    """Origin of the trace, with what was dropped and what was lost."""
    head = journals[0].head
    dropped: dict[str, int] = {}
    notes = [str(head["notes"])] if head.get("notes") else []
    for journal in journals:
        for why, rows in (journal.done or {}).get("dropped", {}).items():
            dropped[why] = dropped.get(why, 0) + int(rows)
        if journal.done is None:
            notes.append(
                f"The capture on rank {journal.head['rank']} was killed: the trace holds what it "
                f"had written, {journal.torn_bytes} bytes of a torn block were dropped; how many "
                "padding rows were dropped is not known."
            )
    if replicas:
        notes.append(f"{replicas} further ranks recorded the same rows (they shared the batch).")
    record = provenance.record(
        "tracegen.capture",
        parameters=head.get("parameters", {}),
        source=head.get("source", {}),
        dropped=[{"rows": rows, "why": why} for why, rows in sorted(dropped.items())],
        notes=" ".join(notes),
    )
    record["environment"].update(head.get("environment", {}))
    order: SlotOrder = "weight_desc" if falling and sums is not None else "native"
    return TraceInfo(
        kind="captured",
        title=str(head.get("title", "")),
        license=str(head.get("license", "")),
        created_utc=str(head.get("created_utc", "")),
        provenance=record,
        slot_order=order,
        weight_semantics=str(head.get("weight_semantics", "")) if sums is not None else "",
        weight_row_sum=_row_sum(sums) if sums is not None else "",
    )


def _row_sum(sums: list[float]) -> str:
    """Sum of the weights of a row: one number if the rows agree to half precision."""
    low, high = sums
    if not math.isfinite(low):
        return ""
    if high - low <= 0.01 * max(abs(high), 1e-6):
        middle = (low + high) / 2
        return f"{round(middle, 2):g}"
    return f"{low:.3g} to {high:.3g}"
