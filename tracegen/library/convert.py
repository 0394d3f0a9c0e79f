"""Rewriting traces: in another version of the format, or a part of one as a new trace."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tracegen import library
from tracegen.file import schema
from tracegen.shared import output
from tracegen.shared.errors import UserError
from tracegen.trace import provenance
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import RequestTable, stated_ranks

WRITES = ("1.0", "1.1")
"""Versions of the format that can be written; every 1.x can be read. A file is of the lowest that
has all it says."""
OPTIONAL = ("token_id", "gate_weights", "rank", "flags", "requests")
"""Parts of a trace that can be left out."""


@dataclass(frozen=True)
class Conversion:
    """Outcome of a conversion."""

    content_id: str
    parent: str
    """Content id of the trace it was made from."""
    version: str
    """Of the format, in full."""

    @property
    def is_same(self) -> bool:
        """Tell whether the new trace means the same as the old one."""
        return self.content_id == self.parent


def convert(
    source: str,
    out: Path,
    *,
    to: str | None = None,
    layers: str | None = None,
    tokens: str | None = None,
    without: tuple[str, ...] = (),
    overwrite: bool = False,
    max_bytes: int | None = None,
) -> Conversion:
    """Rewrite a trace, whole or in part.

    Parameters
    ----------
    source
        Name in a catalogue, path or URL.
    out
        File to write.
    to
        Version of the format, such as ``"1.0"``; None for the newest.
    layers
        Positions among the MoE layers to keep, ``"A:B"`` or ``"A,B,..."``; None for all.
    tokens
        Token rows to keep, ``"A:B"``; None for all.
    without
        Names of :data:`OPTIONAL` to leave out.
    overwrite
        Whether the file may be replaced.
    max_bytes
        Refuse to allocate more than this, in bytes; None for 4 GiB.

    Returns
    -------
    Content ids before and after: equal unless something was left out.

    Raises
    ------
    UserError
        If the source is not valid, the version cannot be written, or a part does not exist.
    """
    version = to or WRITES[-1]
    if version not in WRITES and version not in (schema.FIRST, schema.VERSION):
        msg = f"format version {version!r} cannot be written; possible: {', '.join(WRITES)}"
        raise UserError(msg)
    needed = [name for name in without if name not in OPTIONAL]
    if needed:
        msg = f"{needed[0]!r} cannot be left out; possible: {', '.join(OPTIONAL)}"
        raise UserError(msg)
    if output.replaces(out) and not overwrite:
        msg = f"{out} exists; --force overwrites it"
        raise UserError(msg)
    with library.open_trace(source) as file:
        number, ranks = file.num_layers, None if tokens is None else file.num_ranks
    trace = library.load(
        source,
        layers=None if layers is None else _positions(layers, number),
        tokens=None if tokens is None else _range(tokens, "--tokens"),
        max_bytes=max_bytes,
    )
    parent = trace.stored_content_id
    if ranks is not None:
        # Where the part has no token of the last GPUs, they were there.
        trace = dataclasses.replace(
            trace,
            info=dataclasses.replace(trace.info, num_ranks=stated_ranks(trace.tokens.rank, ranks)),
        )
    converted = _leave_out(trace, without)
    changes = {"layers": layers, "tokens": tokens, "without": list(without)}
    if any(changes.values()):
        dropped = trace.info.provenance.get("dropped", [])
        record = provenance.record(
            "moereplay trace convert",
            parameters={key: value for key, value in changes.items() if value},
            parents=[parent],
            source=trace.info.provenance.get("source", {}),
            dropped=dropped,
        )
        converted = dataclasses.replace(converted, info=dataclasses.replace(converted.info, provenance=record))
    from tracegen.file import header
    from tracegen.file.writer import write

    if version in ("1.0", schema.FIRST) and header.version_of(converted.info) != schema.FIRST:
        msg = (
            f"format version {version} cannot say that there were {converted.num_ranks} GPUs, of "
            "which the last had no token; 1.1 can"
        )
        raise UserError(msg)
    digest = write(converted, out, overwrite=overwrite)
    return Conversion(digest, parent, header.version_of(converted.info))


def _leave_out(trace: RoutingTrace, without: tuple[str, ...]) -> RoutingTrace:
    """The trace without some of its optional parts."""
    tokens, info = trace.tokens, trace.info
    weights = None if "gate_weights" in without else trace.gate_weights
    if weights is None:
        info = dataclasses.replace(info, weight_semantics="", weight_row_sum="")
    if "rank" in without:
        info = dataclasses.replace(info, num_ranks=0)
    return dataclasses.replace(
        trace,
        gate_weights=weights,
        flags=None if "flags" in without else trace.flags,
        tokens=dataclasses.replace(
            tokens,
            rank=None if "rank" in without else tokens.rank,
            token_id=None if "token_id" in without else tokens.token_id,
        ),
        requests=RequestTable() if "requests" in without else trace.requests,
        info=info,
    )


def _positions(text: str, number: int) -> list[int]:
    """Layers of ``A:B`` or ``A,B,...``."""
    if ":" in text:
        return list(range(number))[_range(text, "--layers")]
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        msg = f"--layers {text}: write A:B or A,B,..., positions among the MoE layers"
        raise UserError(msg) from error


def _range(text: str, option: str) -> slice:
    """``A:B`` as a slice."""
    parts = text.split(":")
    try:
        start, stop = (int(part) if part.strip() else None for part in parts)
    except ValueError as error:
        msg = f"{option} {text}: write A:B, such as 0:4096"
        raise UserError(msg) from error
    if start is not None and stop is not None and start >= stop >= 0:
        msg = f"{option} {text}: keeps nothing; write A:B with A below B, such as 0:4096"
        raise UserError(msg)
    return slice(start, stop)
