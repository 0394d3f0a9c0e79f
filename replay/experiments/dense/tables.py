"""Results of tensor parallelism as tables."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from replay.experiments.dense.result import TensorComparison
from replay.model.machine.kinds import KIND_NAMES, KINDS, Kind
from replay.report.comparisons import label, labels, outside_notes, tables_group
from replay.report.mechanisms import mechanism_table
from replay.report.tables import MB, named_table, table, word_column
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Group

    from replay.experiments.dense.result import TensorResult

SLICES = 52  # of the time, each a character
ON_PATH = ("compute", "wires", "copying", "overhead", "no SM", "latency")
"""What the time of a critical path is spent on, each with the queues before it."""


def tables(result: TensorResult | TensorComparison, *, details: bool) -> Group:
    """Tables of one replay, or of a comparison.

    Parameters
    ----------
    details
        Of a comparison, whether bytes by direction, waiting, SMs, skew, mechanisms and links over
        time are wanted, or times alone, the fastest first, and what they rest on.
    """
    if not isinstance(result, TensorComparison):
        num_sms = result.system.values["gpu.num_sms"]
        note = f"SMs that only communicate: {result.communication_sms} of {num_sms}."
        shown = [time_table(result), *details_of([result])]
        return tables_group(f"{result.scheme.name}: {heading(result)}", shown, [note])
    more = ["Bytes, what each scheme waits for, skew, tables, links over time: --details."]
    shown, lines = [times_table(result)], [*notes(result), *([] if details else more)]
    shown += details_of(result.ranking) if details else []
    return tables_group(heading(result.base), shown, lines)


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
    """Heading that names the replay."""
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
    layer = "layer" if compared.results[0].spec.part == "layer" else "time"
    return table(
        "times",
        f"Time; speed-up over {compared.baseline}",
        compared.ranking,
        (Column(layer, "us", ",.1f"), lambda one: one.layer_us),
        (
            word_column("speed-up", "", ".2f"),
            lambda one: compared.speed_up(one.name) if one.time_us else None,
        ),
        (word_column("exposed", "us", ",.1f", 1), lambda one: one.exposed_us / one.spec.layers),
        (word_column("up", "", ".0%", 2), lambda one: one.up.utilisation),
        (word_column("down", "", ".0%", 2), lambda one: one.down.utilisation),
        (word_column("SMs", "", "d", 3), lambda one: one.communication_sms),
        labels=labels(compared.ranking),
    )


# ---- details -------------------------------------------------------------------------------------


def details_of(results: Sequence[TensorResult]) -> Iterator[Table]:
    """Bytes, critical path, SMs, and what else there is of some results."""
    mechanisms = mechanism_table("Mechanisms, all GPUs together", [[one.measures] for one in results], labels(results))
    for made in (bytes_table, path_table, sm_table, skew_table):
        found = made(results)
        yield from [found] if found.rows else []
    yield from [] if mechanisms is None else [mechanisms]
    yield links_table(results)


def bytes_table(results: Sequence[TensorResult]) -> Table:
    """Payload of gathers and reductions, and all wire bytes, in both directions."""

    def bytes_of(kind: str, way: str) -> Callable[[TensorResult], float]:
        return lambda one: _mean(getattr(getattr(one, way), f"{kind}_bytes")) / MB

    columns = []
    for kind in ("gather", "reduce", "wire"):
        up, down = word_column(f"{kind} up", "MB", ",.1f", word=kind), Column(f"{kind} down", "MB", ",.1f")
        columns += [(up, bytes_of(kind, "up")), (down, bytes_of(kind, "down"))]
    title = "Bytes of a GPU, mean over the GPUs"
    return table("bytes", title, results, *columns, labels=labels(results))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def path_table(results: Sequence[TensorResult]) -> Table:
    """Table of one chain of tasks that adds up to the time."""
    columns = [word_column(what, "us", ",.1f", word=f"path: {what}") for what in ON_PATH]
    rows = [(label(one), on_path_us(one).values()) for one in results]
    return named_table("critical-path", "Critical path, with its queues", columns, rows)


def on_path_us(result: TensorResult) -> dict[str, float]:
    """Time of the critical path by what filled it, in the words of `ON_PATH`."""
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
        Column("computing", "", ".1%"),
        word_column("waiting", "", ".1%", word="waiting tiles"),
        Column("copying", "", ".1%"),
        Column("idle", "", ".1%"),
        Column("computing", "us", ",.1f", rank=1),
    ]
    rows = [
        (label(one), [*shares.values(), shares["computing"] * one.time_us])
        for one in results
        if (shares := sm_shares(one)) is not None
    ]
    return named_table("sms", "SM time, of all SMs of a GPU: shares of the time", columns, rows)


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
    rows = [(label(result), what, found) for result in results for what, found in result.skew.between_gpus.items()]
    return table(
        "skew",
        "From the first GPU's access to an address until the last's",
        rows,
        (Column("scheme"), lambda one: one[0]),
        (Column("access"), lambda one: one[1]),
        (Column("addresses", form=",d"), lambda one: one[2].count),
        (Column("mean", "us", ".2f"), lambda one: one[2].mean_us),
        (Column("p50", "us", ".2f"), lambda one: one[2].p50_us),
        (Column("p99", "us", ".2f"), lambda one: one[2].p99_us),
        (Column("max", "us", ".2f"), lambda one: one[2].max_us),
    )


def links_table(results: Sequence[TensorResult]) -> Table:
    """Both directions of the links in slices of the time, in tenths."""
    rows = []
    for result in results:
        over_time = result.measures.utilisation_over_time
        for way, group in (("up", "uplink"), ("down", "downlink")):
            windows = over_time.groups.get(group, [])
            rows.append((label(result), way, _tenths(windows, over_time.window_us, result.time_us)))
    title = f"Links in use over time, in tenths: . below 5%, # above 95%; {SLICES} slices each"
    columns = [Column("scheme"), Column("direction"), Column("from 0 until the end")]
    return Table("links", title, columns, rows)


def _tenths(windows: Sequence[float], window_us: float, time_us: float) -> str:
    """Shares of equal slices of the time, a character each."""
    edges = [place * time_us / SLICES for place in range(SLICES + 1)]
    return "".join(_tenth(share_in(windows, window_us, begin, end)) for begin, end in pairwise(edges))


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
    """Notes on stars, columns and missing rows."""
    system = compared.base.system
    yield f"A GPU has {system.values['gpu.num_sms']} SMs."
    yield from _alone_notes(compared.results)
    yield from outside_notes(system.name, compared)


def _alone_notes(results: Sequence[TensorResult]) -> Iterator[str]:
    """Notes on the time of the layer's kernels without communication."""
    alone = {bool(one.sequence_parallel): one.products_us / one.spec.layers for one in results}
    words = {True: "with sequence parallelism", False: "without"}
    said = ", ".join(f"{alone[way]:,.1f} us {words[way]}" for way in (True, False) if way in alone)
    yield f"The layer's kernels alone, in turn, take {said}."
