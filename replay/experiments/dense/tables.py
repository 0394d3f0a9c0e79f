"""Results of tensor parallelism as tables."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from replay.model.machine.kinds import KIND_NAMES, KINDS, Kind
from replay.report.comparisons import label, outside_notes, tables_group
from replay.report.mechanisms import lines_of
from replay.report.tables import MB
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Group

    from replay.experiments.dense.result import TensorComparison, TensorResult
    from tracegen.shared.display.content import Cell

SLICES = 52  # of the time, each a character
ON_PATH = ("compute", "wires", "copying", "overhead", "no SM", "latency")
"""What the time of a critical path is spent on, each with the queues before it."""


def ranking(compared: TensorComparison) -> Group:
    """What a comparison is asked for first: times, the fastest first, and what they rest on."""
    more = "Bytes, what each scheme waits for, skew, tables, links over time: --details."
    return tables_group(heading(compared.base), [times_table(compared)], [*notes(compared), more])


def comparison_tables(compared: TensorComparison) -> Group:
    """Everything: times, bytes by direction, waiting, SMs, skew, mechanisms, links over time."""
    tables = [times_table(compared), *details(compared.ranking)]
    return tables_group(heading(compared.base), tables, notes(compared))


def result_tables(result: TensorResult) -> Group:
    """Tables of one replay."""
    num_sms = result.system.values["gpu.num_sms"]
    note = f"SMs that only communicate: {result.communication_sms} of {num_sms}."
    tables = [time_table(result), *details([result])]
    return tables_group(f"{result.scheme.name}: {heading(result)}", tables, [note])


def time_table(result: TensorResult) -> Table:
    """Time of one replay, and what to hold it against."""
    every = max(result.time_us, 1e-12)
    rows = (
        ("layer" if result.spec.layers == 1 else "all layers", result.time_us),
        ("its kernels alone, in turn", result.products_us),
        ("exposed communication", result.exposed_us),
        ("bound that no schedule can beat", result.measures.bounds_us.largest_us),
    )
    return Table(
        "time",
        "Time",
        [Column("what"), Column("time", "us", ",.1f"), Column("share", "", ".1%")],
        [(what, time_us, time_us / every) for what, time_us in rows],
    )


def heading(result: TensorResult) -> str:
    """What was replayed."""
    spec = result.spec
    what = "layer" if spec.part == "layer" else f"sub-layer {spec.part}"
    if spec.layers > 1:
        what = f"{spec.layers} {what.replace('layer', 'layers', 1)}"
    if spec.phase == "decode":
        sizes = f"decode, {result.tokens:,} tokens that attend to {result.sequence:,}"
    else:
        sizes = f"{spec.direction}, {result.tokens:,} tokens in sequences of {result.sequence:,}"
    where = f"on {result.tp} GPUs of {result.system.name}"
    return f"{result.model['name']}, {what}, {sizes}, {where}"


def times_table(compared: TensorComparison) -> Table:
    """Times, what is exposed, and links in use, the fastest scheme first."""
    columns = [
        Column("scheme"),
        Column("layer" if compared.results[0].spec.part == "layer" else "time", "us", ",.1f"),
        Column("speed-up", "", ".2f", says=says("speed-up")),
        Column("exposed", "us", ",.1f", rank=1, says=says("exposed")),
        Column("up", "", ".0%", rank=2, says=says("up")),
        Column("down", "", ".0%", rank=2, says=says("down")),
        Column("SMs", form="d", rank=3, says=says("SMs")),
    ]
    rows = [
        (
            label(result),
            result.layer_us,
            compared.speed_up(result.name) if result.time_us else None,
            result.exposed_us / result.spec.layers,
            result.up.utilisation,
            result.down.utilisation,
            result.communication_sms,
        )
        for result in compared.ranking
    ]
    return Table("times", f"Time; speed-up over {compared.baseline}", columns, rows)


# ---- details -------------------------------------------------------------------------------------


def details(results: Sequence[TensorResult]) -> Iterator[Table]:
    """Bytes, critical path, SMs, and what else there is of some results."""
    tables = (bytes_table, path_table, sm_table, skew_table, mechanism_table, links_table)
    yield from (table for table in (make(results) for make in tables) if table.rows)


def bytes_table(results: Sequence[TensorResult]) -> Table:
    """Payload of gathers and reductions, and all wire bytes, in both directions."""
    kinds = ("gather", "reduce", "wire")
    columns = [Column("scheme")]
    for kind in kinds:
        columns.append(Column(f"{kind} up", "MB", ",.1f", says=says(kind)))
        columns.append(Column(f"{kind} down", "MB", ",.1f"))
    rows: list[tuple[Cell, ...]] = [
        (
            label(result),
            *(
                _mean(getattr(direction, f"{kind}_bytes")) / MB
                for kind in kinds
                for direction in (result.up, result.down)
            ),
        )
        for result in results
    ]
    return Table("bytes", "Bytes of a GPU, mean over the GPUs", columns, rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def path_table(results: Sequence[TensorResult]) -> Table:
    """What the time went by with, on one chain of tasks that adds up to it."""
    columns = [
        Column("scheme"),
        *(Column(what, "us", ",.1f", says=says(f"path: {what}")) for what in ON_PATH),
    ]
    rows: list[tuple[Cell, ...]] = [
        (label(result), *on_path_us(result).values()) for result in results
    ]
    return Table("critical-path", "Critical path, with its queues", columns, rows)


def on_path_us(result: TensorResult) -> dict[str, float]:
    """Time of the critical path by what it went by with, the words of `ON_PATH`."""
    spent = dict.fromkeys(ON_PATH, 0.0)
    for kind_name, times in result.measures.critical_path.by_kind_us.items():
        kind = Kind(KIND_NAMES.index(kind_name))
        word = "wires" if KINDS[kind].role == "serialisation" else KINDS[kind].role
        spent[word] += times["service"] + times["queueing"]
        # A block waits for credits where the scheduler has no SM for it.
        spent["no SM" if kind == Kind.LAUNCH else word] += times["credits"]
        spent["latency"] += times["latency"]
    return spent


def sm_table(results: Sequence[TensorResult]) -> Table:
    """Time of all SMs of a GPU by what they do, as shares of the layer's time."""
    columns = [
        Column("scheme"),
        Column("computing", "", ".1%"),
        Column("waiting", "", ".1%", says=says("waiting tiles")),
        Column("copying", "", ".1%"),
        Column("idle", "", ".1%"),
        Column("computing", "us", ",.1f", rank=1),
    ]
    rows: list[tuple[Cell, ...]] = []
    for result in results:
        shares = sm_shares(result)
        if shares is not None:
            rows.append((label(result), *shares.values(), shares["computing"] * result.time_us))
    return Table("sms", "SM time, of all SMs of a GPU: shares of the time", columns, rows)


def sm_shares(result: TensorResult) -> dict[str, float] | None:
    """Time of all SMs of a GPU by what they do, over its time; None where that is not known."""
    found, num_sms = result.measures.sm_time_us, result.system.values["gpu.num_sms"]
    if found is None or not isinstance(num_sms, int):
        return None
    every = max(num_sms * result.time_us, 1e-12)
    shares = {
        "computing": _mean(found.computing_us) / every,
        "waiting": (_mean(found.waiting_for_l2_us) + _mean(found.waiting_for_hbm_us)) / every,
        "copying": _mean(found.copying_us) / every,
    }
    return {**shares, "idle": max(0.0, 1 - sum(shares.values()))}


def skew_table(results: Sequence[TensorResult]) -> Table:
    """Accesses of several GPUs to one address, where a scheme has some."""
    columns = [
        Column("scheme"),
        Column("accesses"),
        Column("addresses", form=",d"),
        *(Column(what, "us", ".2f") for what in ("mean", "p50", "p99", "max")),
    ]
    rows = [
        (
            label(result), what, found.count, found.mean_us, found.p50_us, found.p99_us,
            found.max_us,
        )
        for result in results
        for what, found in result.skew.between_gpus.items()
    ]  # fmt: skip
    title = "From the first GPU's access to an address until the last's"
    return Table("skew", title, columns, rows)


def mechanism_table(results: Sequence[TensorResult]) -> Table:
    """Use of finite memories, caches, tiles and counters."""
    rows = [
        (label(result), mechanism, use)
        for result in results
        for mechanism, use in lines_of([result.measures.mechanisms])
    ]
    columns = [Column("scheme"), Column("mechanism"), Column("use")]
    return Table("mechanisms", "Mechanisms, all GPUs together", columns, rows)


def links_table(results: Sequence[TensorResult]) -> Table:
    """Both directions of the links in slices of the time, in tenths."""
    rows = []
    for result in results:
        over_time = result.measures.utilisation_over_time
        for way, group in (("up", "uplink"), ("down", "downlink")):
            windows = over_time.groups.get(group, [])
            rows.append((label(result), way, _tenths(windows, over_time.window_us, result.time_us)))
    title = f"Links in use over time, in tenths: . below 5%, # above 95%; {SLICES} slices each"
    columns = [Column("scheme"), Column("links"), Column("from 0 until the end")]
    return Table("links", title, columns, rows)


def _tenths(windows: Sequence[float], window_us: float, time_us: float) -> str:
    """Shares of equal slices of the time, a character each."""
    edges = [place * time_us / SLICES for place in range(SLICES + 1)]
    return "".join(
        _tenth(share_in(windows, window_us, begin, end)) for begin, end in pairwise(edges)
    )


def share_in(windows: Sequence[float], window_us: float, begin: float, end: float) -> float:
    """Mean share from `begin` to `end`, each window counting with what lies between."""
    if end <= begin:
        return 0.0
    busy = 0.0
    for index in range(int(begin / window_us), min(len(windows), int(end / window_us) + 1)):
        first, last = index * window_us, (index + 1) * window_us
        busy += windows[index] * max(0.0, min(end, last) - max(begin, first))
    return busy / (end - begin)


def _tenth(share: float) -> str:
    tenth = round(10 * min(max(share, 0.0), 1.0))
    return "." if tenth == 0 else "#" if tenth == 10 else str(tenth)


# ---- notes ---------------------------------------------------------------------------------------


def notes(compared: TensorComparison) -> Iterator[str]:
    """What stars, columns and missing rows mean."""
    system = compared.base.system
    yield f"A GPU has {system.values['gpu.num_sms']} SMs."
    yield from _alone_notes(compared.results)
    yield from outside_notes(system.name, compared)


def _alone_notes(results: Sequence[TensorResult]) -> Iterator[str]:
    """What the layer's kernels take without communication."""
    alone = {bool(one.sequence_parallel): one.products_us / one.spec.layers for one in results}
    words = {True: "with sequence parallelism", False: "without"}
    said = ", ".join(f"{alone[way]:,.1f} us {words[way]}" for way in (True, False) if way in alone)
    yield f"The layer's kernels alone, in turn, take {said}."
