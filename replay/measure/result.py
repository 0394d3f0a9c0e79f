"""What a replay returns: the schema ``moereplay-result/1`` and ``moereplay-comparison/1``.

Times are microseconds (exact multiples of a picosecond), bytes whole numbers, lists have one
entry a GPU. Nothing depends on the clock or the machine that computed it: the same input gives
the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from replay.errors import UserError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PhaseTimes(_Strict):
    """First start and last end of a phase, and for how long something of it was in service."""

    start_us: float
    end_us: float
    busy_us: float


class PortBytes(_Strict):
    """Bytes over every GPU's port, by direction: uplink GPU to switch, downlink switch to GPU."""

    uplink: list[int]
    downlink: list[int]


class BusiestPort(_Strict):
    """The port in service longest in a phase, or in the whole layer.

    Another port may carry as many bytes: one that stores to several peers serves them more slowly.
    """

    direction: str
    gpu: int
    payload_bytes: int
    wire_bytes: int
    busy_us: float


class Utilisation(_Strict):
    """Busy time of a class of resources over the layer's time."""

    mean: float = Field(ge=0, le=1)
    max: float = Field(ge=0, le=1)


class UtilisationOverTime(_Strict):
    """Share of each class of resources in service, window by window.

    Attributes
    ----------
    window_us
        Length of a window; the first begins at 0, the last may reach past the end.
    groups
        For each class, the share (0 to 1) of all its servers in each window.
    """

    window_us: float
    groups: dict[str, list[float]]


class TokenLatency(_Strict):
    """Time of the tokens from the start of their dispatch until they are combined.

    Attributes
    ----------
    num_tokens
        Tokens with at least one expert; the others have no way to go.
    """

    num_tokens: int
    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


class SlowToken(_Strict):
    """One of the tokens that took longest.

    Attributes
    ----------
    token
        Its place in the batch, tokens ordered by owner.
    trace_row
        Its row in the trace, where that is known.
    """

    token: int
    trace_row: int | None
    rank: int
    experts: list[int]
    sent_us: float
    combined_us: float
    latency_us: float


class BusiestResource(_Strict):
    """The resource that is busy for the largest share of the layer."""

    name: str
    group: str
    utilisation: float = Field(ge=0, le=1)


class Bounds(_Strict):
    """Times that no schedule of this work can beat.

    Attributes
    ----------
    port_us
        Busiest port, all phases together.
    phases_us
        Busiest port of the dispatch plus that of the combine, for schemes that keep the two apart
        with a barrier over all GPUs; otherwise null.
    sm_us, memory_us
        Busiest pool of SMs; busiest HBM.
    chain_us
        Longest chain of dependent tasks, if nothing ever waited for a resource.
    largest_us
        The largest of them.
    """

    port_us: float
    phases_us: float | None
    sm_us: float
    memory_us: float
    chain_us: float
    largest_us: float


class CriticalPath(_Strict):
    """One chain of tasks and waits that adds up to the layer's time.

    Attributes
    ----------
    by_cause_us
        compute; serialisation (on a port); copying (SMs and HBM that move rows); overhead
        (launches, barriers, flags, host waits); queueing (all servers busy); latency (on the way);
        credits (waiting for room in a buffer).
    by_kind_us, by_resource_us
        Service, queueing, latency and credits of the chain's tasks, by kind and by class of
        resource.
    queueing_behind_us
        The queueing time by the kind of the tasks that were served meanwhile.
    """

    num_tasks: int
    by_cause_us: dict[str, float]
    by_kind_us: dict[str, dict[str, float]]
    by_resource_us: dict[str, dict[str, float]]
    queueing_behind_us: dict[str, float]


class TableUse(_Strict):
    """How the tables of a group (one or several a GPU) were used.

    Attributes
    ----------
    entries
        Entries of one table.
    lookups, hits, new, missed
        Of all tables together; *new* keys were never there, *missed* ones had been evicted.
    evictions
        Entries that left for want of room.
    hit_rate
        Hits over lookups; 1 without lookups.
    high_water
        Most entries in use at once in one table.
    """

    entries: int
    lookups: int
    hits: int
    new: int
    missed: int
    evictions: int
    hit_rate: float = Field(ge=0, le=1)
    high_water: int


class BufferUse(_Strict):
    """Capacity of the finite buffers of a group, and the most that was in use at once in one."""

    capacity: int
    high_water: int


class TileUse(_Strict):
    """How well rows fill the tiles of the experts' first GEMM.

    Attributes
    ----------
    num_tiles, num_rows
        Row tiles, and rows in them.
    fill
        Rows over the rows that so many full tiles have.
    """

    num_tiles: int
    num_rows: int
    fill: float = Field(ge=0, le=1)


class Mechanisms(_Strict):
    """What the mechanisms of a scheme did.

    Attributes
    ----------
    wire_bytes
        Bytes on the ports by what they are for: payload, headers (with target lists, row metadata
        and padding), requests, acks, signals (counts, flags, notifications), evictions (partial
        sums sent early).
    tables, buffers
        Finite memories by name.
    polling_us
        For each GPU, SM time in which blocks held an SM and waited for data; null for schemes whose
        blocks do not.
    counters, ratios
        What else the scheme counts, for each GPU, and sums of them over one another.
    """

    wire_bytes: dict[str, PortBytes]
    tables: dict[str, TableUse]
    buffers: dict[str, BufferUse]
    tiles: TileUse | None
    polling_us: list[float] | None
    counters: dict[str, list[int]]
    ratios: dict[str, float]


class Measures(_Strict):
    """What is measured on a schedule, of one layer or of many.

    Attributes
    ----------
    exposed_communication_us, exposed_communication_us_per_gpu
        Time from the layer's start to the GPU's own end in which neither a compute task (GEMM tile,
        permute, activation) nor a launch of the GPU is in service or draining: transfers,
        synchronisation and waiting that nothing hides. Mean over the GPUs, and each.
    busiest_port
        For dispatch, combine and the whole layer ("both").
    critical_path
        One chain of tasks and waits that adds up to the layer's time, by what the time was spent
        on.
    mechanisms
        What explains the result: finite tables and buffers, tiles, polling, bytes by purpose.
    """

    makespan_us: float
    rank_end_us: list[float]
    phases: dict[str, PhaseTimes]
    payload_bytes: dict[str, PortBytes]
    wire_bytes: dict[str, PortBytes]
    busiest_port: dict[str, BusiestPort]
    utilisation: dict[str, Utilisation]
    utilisation_over_time: UtilisationOverTime
    busiest_resource: BusiestResource
    exposed_communication_us: float
    exposed_communication_us_per_gpu: list[float]
    bounds_us: Bounds
    critical_path: CriticalPath
    mechanisms: Mechanisms
    num_tasks: int
    num_edges: int


class LayerResult(Measures):
    """One layer of one step, beginning on all GPUs at once."""

    step: int
    layer_index: int
    decoder_layer: int
    is_backward: bool
    routing: dict[str, float]
    token_latency_us: TokenLatency
    slowest_tokens: list[SlowToken]


class ChainedLayer(_Strict):
    """One layer of a chain, as the GPUs met it.

    Attributes
    ----------
    start_us, end_us
        When the first and the last GPU began, and when the first and the last had its tokens.
    mean_us
        Mean over the GPUs of the time from its beginning to its end, waiting for others included.
    phases_us
        First start and last end of each phase, over all GPUs.
    payload_bytes, wire_bytes
        As in `Measures`, of this layer alone.
    """

    step: int
    layer_index: int
    is_backward: bool
    start_us: tuple[float, float]
    end_us: tuple[float, float]
    mean_us: float
    phases_us: dict[str, tuple[float, float]]
    payload_bytes: dict[str, PortBytes]
    wire_bytes: dict[str, PortBytes]


class ChainResult(Measures):
    """Layers of one or several steps, each GPU going on when its own tokens are combined.

    Attributes
    ----------
    between_us
        Mean over the GPUs of the time in attention, norms, gate and shared experts.
    left_out
        Parts of the model that no time is charged for.
    barrier_us
        Time of the same work with a barrier over all GPUs after each layer, if it was asked for:
        the slowest GPU's time between layers and the isolated layer's, summed.
    """

    num_steps: int
    num_layers: int
    layers: list[ChainedLayer]
    between_us: float
    left_out: list[str]
    barrier_us: float | None
    routing: dict[str, float]


class Totals(_Strict):
    """Sums over the layers replayed.

    `mean_layer_us` is the mean time of a layer: isolated, or in a chain with what lies between.
    """

    num_layers: int
    makespan_us: float
    mean_layer_us: float
    exposed_communication_us: float
    bound_us: float
    uplink_payload_bytes: list[int]
    downlink_payload_bytes: list[int]


class Result(_Strict):
    """One trace on one system under one scheme, and everything needed to run it again."""

    format: Literal["moereplay-result/1"] = "moereplay-result/1"
    run_id: str
    version: str
    trace: dict[str, Any]
    system: dict[str, Any]
    scheme: dict[str, Any]
    batch: dict[str, Any]
    placement: str
    precision: str
    direction: str
    layers: list[LayerResult]
    chain: ChainResult | None = None
    totals: Totals

    @property
    def measured(self) -> Sequence[LayerResult | ChainResult]:
        """What the result consists of: isolated layers, or one chain of them."""
        return self.layers if self.chain is None else [self.chain]

    def to_json(self) -> str:
        """JSON text: sorted keys, ends with a newline, the same bytes for the same input."""
        return _json(self)

    def save(self, path: str | Path) -> None:
        """Write the JSON, all of it or nothing.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        write_text(path, self.to_json())

    def summary(self) -> str:
        """A few lines for people."""
        from replay.report.text import summary

        return summary(self)


class Comparison(_Strict):
    """The same routing on the same system under several schemes."""

    format: Literal["moereplay-comparison/1"] = "moereplay-comparison/1"
    baseline: str
    results: list[Result]

    def to_json(self) -> str:
        """JSON text: sorted keys, ends with a newline, the same bytes for the same input."""
        return _json(self)

    def save(self, path: str | Path) -> None:
        """Write the JSON, all of it or nothing.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        write_text(path, self.to_json())

    def summary(self) -> str:
        """The comparison as tables of text."""
        from replay.report.text import comparison

        return comparison(self)

    def __getitem__(self, scheme: str) -> Result:
        """Result of a scheme by name."""
        for result in self.results:
            if result.scheme["name"] == scheme:
                return result
        raise KeyError(scheme)


def run_id(description: dict[str, Any]) -> str:
    """Identity of a run before it starts: SHA-256 of its sorted description."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check_target(path: str | Path) -> None:
    """Refuse a file that could not be written, before the work that fills it.

    Raises
    ------
    UserError
        If its folder does not exist or cannot be written to, or the path is a folder.
    """
    target = Path(path)
    if target.is_dir():
        message = f"cannot write {target}: it is a folder"
        raise UserError(message)
    if not target.parent.is_dir():
        message = f"cannot write {target}: there is no folder {target.parent}"
        raise UserError(message)
    if not os.access(target.parent, os.W_OK):
        message = f"cannot write {target}: folder {target.parent} is read-only"
        raise UserError(message)


def write_text(path: str | Path, text: str) -> None:
    """Write a file beside its place and rename it, so that nobody ever sees half of it.

    Raises
    ------
    UserError
        If the folder does not exist or cannot be written to.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        message = f"cannot write {target}: {error.strerror} (folder {target.parent})"
        raise UserError(message) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        # mkstemp makes private files; a result is an ordinary one.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        message = f"cannot write {target}: {error.strerror}"
        raise UserError(message) from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _json(model: BaseModel) -> str:
    return json.dumps(model.model_dump(), sort_keys=True, indent=1, allow_nan=False) + "\n"
