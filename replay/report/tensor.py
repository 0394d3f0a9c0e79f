"""Results of tensor parallelism as tables of text, none wider than 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.machine.kinds import KIND_NAMES, KINDS, Kind
from replay.report.mechanisms import lines_of
from replay.report.tables import text_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from replay.tensor.result import TensorComparison, TensorResult

WIDTH = 80
SLICES = 52  # of the time, each a character
ROLES = {
    "compute": "compute",
    "wires": "serialisation",
    "copying": "copying",
    "overhead": "overhead",
}
"""Columns of the critical path, and the role of the tasks whose time and queues each adds up."""

EXPOSED = "exposed: communication and waiting that no computation hides; mean over GPUs."
LINKS = "up, down: time in which the links out of a GPU, and into it, are busy."
LEGEND = """\
Wire: payload, headers, requests, acknowledgements, flags.
Critical path: one chain of tasks that adds up to the time, their queues
included. wires: messages on ports; copying: SMs and memory that move rows;
overhead: launches, barriers; no SM: blocks in turn while others have all SMs;
latency: links, switches, memory.
SM time: waiting is for what tiles read, from the L2 cache or memory."""


def ranking(compared: TensorComparison) -> Group:
    """What a comparison is asked for first: times, the fastest first, and what they rest on."""
    return Group(
        Text(_heading(compared.results[0], "")),
        Text(),
        _times_table(compared),
        Text(EXPOSED),
        Text(LINKS),
        *_notes(compared),
        Text("Bytes, what each scheme waits for, skew, tables, links over time: --details."),
    )


def comparison_tables(compared: TensorComparison) -> Group:
    """Everything: times, bytes by direction, waiting, SMs, skew, mechanisms, links over time."""
    return Group(
        Text(_heading(compared.results[0], "")),
        Text(),
        _times_table(compared),
        *_details(_by_time(compared)),
        Text(EXPOSED),
        Text(LINKS),
        Text(LEGEND),
        *_notes(compared),
    )


def result_tables(result: TensorResult) -> Group:
    """Tables of one replay."""
    table = text_table("Time", ("what", "us", "share"))
    for what, time_us in (
        ("layer" if result.spec.layers == 1 else "all layers", result.time_us),
        ("its kernels alone, in turn", result.products_us),
        ("exposed communication", result.exposed_us),
        ("bound that no schedule can beat", result.measures.bounds_us.largest_us),
    ):
        table.add_row(what, f"{time_us:,.1f}", f"{time_us / max(result.time_us, 1e-12):.1%}")
    return Group(
        Text(_heading(result, f"{result.scheme['name']}: ")),
        Text(),
        table,
        *_details([result]),
        Text(LEGEND),
        Text(
            f"SMs that only communicate: {result.communication_sms} of "
            f"{result.system.values['gpu.num_sms']}."
        ),
    )


def _heading(result: TensorResult, before: str) -> str:
    """What was replayed, behind some words."""
    spec = result.spec
    what = "layer" if spec.part == "layer" else f"sub-layer {spec.part}"
    if spec.layers > 1:
        what = f"{spec.layers} {what.replace('layer', 'layers', 1)}"
    if spec.phase == "decode":
        sizes = f"decode, {result.tokens:,} tokens that attend to {result.sequence:,}"
    else:
        sizes = f"{spec.direction}, {result.tokens:,} tokens in sequences of {result.sequence:,}"
    where = f"on {result.tp} GPUs of {result.system.name}"
    return _filled(f"{before}{result.model['name']}, {what}, {sizes}, {where}")


def _filled(text: str) -> str:
    """Text in lines, names in one piece."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _by_time(compared: TensorComparison) -> list[TensorResult]:
    return sorted(compared.results, key=lambda one: one.time_us)


def _name(result: TensorResult) -> str:
    """Name of the scheme; a star says that it needs hardware that is proposed."""
    return str(result.scheme["name"]) + ("*" if result.scheme["proposes"] else "")


def _times_table(compared: TensorComparison) -> Table:
    """Times, what is exposed, and links in use, the fastest scheme first."""
    unit = "layer us" if compared.results[0].spec.part == "layer" else "us"
    table = text_table(
        f"Time; speed-up over {compared.baseline}",
        ("scheme", unit, "speed-up", "exposed us", "up", "down", "SMs"),
    )
    over = compared[compared.baseline].time_us
    for result in _by_time(compared):
        table.add_row(
            _name(result),
            f"{result.layer_us:,.1f}",
            f"{over / result.time_us:.2f}x" if result.time_us else "-",
            f"{result.exposed_us / result.spec.layers:,.1f}",
            f"{result.up.utilisation:.0%}",
            f"{result.down.utilisation:.0%}",
            str(result.communication_sms),
        )
    return table


# ---- details -------------------------------------------------------------------------------------


def _details(results: Sequence[TensorResult]) -> Iterator[RenderableType]:
    yield _bytes_table(results)
    yield _path_table(results)
    yield _sm_table(results)
    yield from _if_any(_skew_table(results))
    yield from _if_any(_mechanism_table(results))
    yield from _links_over_time(results)


def _if_any(table: Table) -> list[Table]:
    return [table] if table.row_count else []


def _bytes_table(results: Sequence[TensorResult]) -> Table:
    """Payload of gathers and reductions, and all wire bytes, in both directions."""
    table = text_table(
        "Payload, and all bytes on the wire (MB per GPU)",
        ("scheme", "gather up", "down", "reduce up", "down", "wire up", "down"),
    )
    for result in results:
        cells = [
            f"{_mean(getattr(direction, f'{kind}_bytes')) / 1e6:,.1f}"
            for kind in ("gather", "reduce", "wire")
            for direction in (result.up, result.down)
        ]
        table.add_row(_name(result), *cells)
    return table


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _path_table(results: Sequence[TensorResult]) -> Table:
    """What the time went by with, on one chain of tasks that adds up to it."""
    table = text_table("Critical path (us)", ("scheme", *ROLES, "no SM", "latency"))
    for result in results:
        spent = dict.fromkeys(ROLES.values(), 0.0)
        latency, no_sm = 0.0, 0.0
        for name, times in result.measures.critical_path.by_kind_us.items():
            kind = Kind(KIND_NAMES.index(name))
            spent[KINDS[kind].role] += times["service"] + times["queueing"]
            if kind == Kind.LAUNCH:  # a block that the scheduler has no SM for
                no_sm += times["credits"]
            else:
                spent[KINDS[kind].role] += times["credits"]
            latency += times["latency"]
        shown = (*spent.values(), no_sm, latency)
        table.add_row(_name(result), *(f"{time:,.1f}" for time in shown))
    return table


def _sm_table(results: Sequence[TensorResult]) -> Table:
    """Time of all SMs of a GPU by what they do, as shares of the layer's time."""
    table = text_table(
        "SM time, of all SMs of a GPU: shares of the time",
        ("scheme", "computing", "waiting", "copying", "idle", "computing us"),
    )
    for result in results:
        found, num_sms = result.measures.sm_time_us, result.system.values["gpu.num_sms"]
        if found is None or not isinstance(num_sms, int):
            continue
        every = max(num_sms * result.time_us, 1e-12)
        computing, copying = _mean(found.computing_us), _mean(found.copying_us)
        waiting = _mean(found.waiting_for_l2_us) + _mean(found.waiting_for_hbm_us)
        idle = max(0.0, 1 - (computing + copying + waiting) / every)
        table.add_row(
            _name(result), f"{computing / every:.1%}", f"{waiting / every:.1%}",
            f"{copying / every:.1%}", f"{idle:.1%}", f"{computing / num_sms:,.1f}",
        )  # fmt: skip
    return table


def _skew_table(results: Sequence[TensorResult]) -> Table:
    """Accesses of several GPUs to one address, where a scheme has some."""
    columns = ("scheme", "accesses", "addresses", "mean", "p50", "p99", "max")
    table = text_table("From the first GPU's access to an address until the last's (us)", columns)
    for result in results:
        for what, found in result.skew.between_gpus.items():
            table.add_row(
                _name(result), what, f"{found.count:,}", f"{found.mean_us:.2f}",
                f"{found.p50_us:.2f}", f"{found.p99_us:.2f}", f"{found.max_us:.2f}",
            )  # fmt: skip
    return table


def _mechanism_table(results: Sequence[TensorResult]) -> Table:
    """Use of finite memories, caches, tiles and counters."""
    table = text_table("Mechanisms, all GPUs together", ("scheme", "mechanism", "use"), num_left=3)
    table.width = WIDTH
    for column in table.columns[1:]:
        column.no_wrap = False  # a line too long is broken, not cut
    for result in results:
        shown = _name(result)
        for mechanism, use in lines_of([result.measures.mechanisms]):
            table.add_row(shown, mechanism, use)
            shown = ""
    return table


def _links_over_time(results: Sequence[TensorResult]) -> Iterator[RenderableType]:
    """Both directions of the links in slices of the time, in tenths."""
    table = text_table(
        f"Links in use over time, in tenths: . below 5%, # above 95%; {SLICES} slices each",
        ("scheme", "links", "from 0 until the end"), num_left=3,
    )  # fmt: skip
    for result in results:
        over_time = result.measures.utilisation_over_time
        shown = _name(result)
        for name, group in (("up", "uplink"), ("down", "downlink")):
            windows = over_time.groups.get(group, [])
            table.add_row(shown, name, _tenths(windows, over_time.window_us, result.time_us))
            shown = ""
    yield table


def _tenths(windows: Sequence[float], window_us: float, time_us: float) -> str:
    """Shares of equal slices of the time, a character each."""
    return "".join(
        _tenth(_share(windows, window_us, place * time_us / SLICES, (place + 1) * time_us / SLICES))
        for place in range(SLICES)
    )


def _share(windows: Sequence[float], window_us: float, begin: float, end: float) -> float:
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


def _notes(compared: TensorComparison) -> Iterator[Text]:
    """What stars, columns and missing rows mean."""
    num_sms = compared.results[0].system.values["gpu.num_sms"]
    lines = [
        f"SMs: those of the {num_sms} of a GPU that only communicate, beside the products.",
        *_alone_notes(compared.results),
        *_outside_notes(compared),
    ]
    yield from (Text(_filled(line)) for line in lines)


def _alone_notes(results: Sequence[TensorResult]) -> Iterator[str]:
    """What the layer's kernels take without communication."""
    alone = {
        bool(one.scheme["sequence_parallel"]): one.products_us / one.spec.layers for one in results
    }
    words = {True: "with sequence parallelism", False: "without"}
    said = ", ".join(f"{alone[way]:,.1f} us {words[way]}" for way in (True, False) if way in alone)
    yield f"The layer's kernels alone, in turn, take {said}."


def _outside_notes(compared: TensorComparison) -> Iterator[str]:
    """What the system does not have, and who was left out."""
    lacking = sorted(
        {str(one) for result in compared.results for one in _list(result.scheme["proposes"])}
    )
    if lacking:
        yield f"* needs hardware that is proposed: {', '.join(lacking)}."
    reasons: dict[str, list[str]] = {}
    for name, reason in compared.left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        yield f"Left out: {', '.join(names)}: {reason}."


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
