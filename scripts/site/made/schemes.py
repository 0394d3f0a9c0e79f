"""A page for each scheme, from the registry: a scheme that is new has one by being there."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from made import ROOT, Made
from made.drawing import svg
from made.merged import Merged, merged
from made.text import anchor_of, code, entry, escaped, fence, of_docstring, toctree

if TYPE_CHECKING:
    from replay.schemes import Scheme
    from replay.schemes.tp.base import TensorScheme

RANKS, TOKENS, EXPERTS, TOPK, HIDDEN = 4, 8, 8, 2, 512
BUFFER_TOKENS = 128
ABOUT_COSTS = "replay/schemes/COSTS.md"


def schemes() -> dict[str, Scheme]:
    """Every scheme of layers with experts, by name."""
    from replay.schemes.registry import COMPARED, EXAMPLES

    return {**COMPARED, **EXAMPLES}


def pages() -> Iterator[Made]:
    """The list of schemes, a page for each, and one for those of tensor parallelism."""
    names = list(schemes())
    text = (
        "# Schemes\n\n`*` marks proposed hardware, here as in results. "
        "[`moereplay schemes`](../commands/schemes.md) prints what these pages say, also of a "
        "scheme in a file of your own. [MECHANISMS.md](../replay/schemes/MECHANISMS.md) has "
        "what all share, [COSTS.md](../replay/schemes/COSTS.md) who pays for what.\n\n"
        f"{_list()}"
        "[Schemes of tensor parallelism](tensor.md)\n"
        ": of layers whose weights are sliced over GPUs\n\n"
        f"{toctree([*(f'{name}.md' for name in names), 'tensor.md'], hidden=True)}"
    )
    yield Made("schemes/index.md", text)
    for name, scheme in schemes().items():
        yield Made(f"schemes/{name}.md", page_of(scheme))
    yield Made("schemes/tensor.md", _tensor_page())


def _list() -> str:
    """Every scheme with its summary."""
    return "".join(
        f"[{escaped(scheme.name)}]({name}.md)\n: {escaped(scheme.summary)}\n\n" for name, scheme in schemes().items()
    )


def page_of(scheme: Scheme) -> str:
    """Page of one scheme."""
    parts = [
        f"# {escaped(scheme.name)}\n\n{escaped(scheme.summary)}.\n",
        f"````{{container}} facts\n{_facts(scheme)}````\n",
        "## Graph\n\n" + _graph(scheme),
        "## Traffic\n\n" + _traffic(scheme),
        "## How it works\n\n" + _head(scheme),
        _wins(scheme),
        "## Options\n\n" + _options(scheme.options, scheme.name, scheme),
        "## Costs\n\n" + _costs(scheme),
        _software(scheme),
        _buffers(scheme),
        "## How it is validated\n\n" + _validated(scheme),
        _golden(scheme),
    ]
    return "\n".join(part for part in parts if part)


def _facts(scheme: Scheme) -> str:
    from replay.report.scheme_tables import SYSTEM, facts_of

    found = facts_of(scheme)
    module = type(scheme).__module__.replace(".", "/")
    facts = {
        "source": scheme.source,
        "overlap": scheme.overlap,
        "assumes": scheme.assumes or "nothing beyond its source",
        "valid for": found.limits if found.limits != "-" else "any set-up",
        "proposes": ", ".join(sorted(scheme.proposes)),
        "needs": ", ".join(sorted(scheme.needs | {scheme.platform} - {""})),
        "number types": found.types,
        "gradients": found.gradients,
        "SMs that only communicate": f"{found.sms} on {SYSTEM}" if found.sms != "-" else "",
        "micro-batches in turns": found.interleave if found.interleave != "-" else "",
    }
    lines = [f"{name}\n: {escaped(text)}\n" for name, text in facts.items() if text]
    lines.append(f"code\n: [{code(f'{module}.py')}](../{module}.py)\n")
    return "\n".join(lines)


# ---- the graph -----------------------------------------------------------------------------------


@cache
def graph_of(name: str) -> tuple[Merged, int]:
    """Merged graph of a scheme on a tiny layer, and the number of tasks that it is made of."""
    from replay.chains.layer import build_layer
    from replay.engine import schedule
    from replay.model.work.layer import ExpertShape
    from replay.schemes.contract import layers
    from replay.schemes.contract.case import system_for

    scheme = schemes()[name]
    ids = layers.draw(RANKS * TOKENS, EXPERTS, TOPK, seed=1)
    shape = ExpertShape(hidden=HIDDEN, intermediate=HIDDEN)
    work = layers.work(ids, RANKS, EXPERTS, shape=shape)
    graph = build_layer(work, system_for(RANKS, platform=scheme.platform), scheme).graph
    return merged(graph, schedule(graph)), graph.num_tasks


def _graph(scheme: Scheme) -> str:
    graph, num_tasks = graph_of(scheme.name)
    title = f"One layer under {scheme.name}: {len(graph.steps)} steps"
    returns = " Dashed arrows lead back to a step whose tasks go on in turn." if graph.returns else ""
    return (
        f"{svg(graph, title, anchor_of('graph', scheme.name))}\n"
        f"One layer on {RANKS} GPUs with {TOKENS} tokens each and {TOPK} of {EXPERTS} experts per "
        f"token, in BF16: {num_tasks:,} tasks. A box has all tasks that do one step on any GPU; an "
        "arrow says that something of the later step waits for something of the earlier one. "
        f"Launches and acknowledgements are left out.{returns}\n"
    )


# ---- traffic -------------------------------------------------------------------------------------


def _traffic(scheme: Scheme) -> str:
    from replay.schemes.ep.traffic import NETWORK, TRAFFIC, way_back

    if scheme.traffic not in TRAFFIC:
        return f"{escaped(scheme.traffic)}\n"
    own, back = TRAFFIC[scheme.traffic], TRAFFIC[way_back(scheme.traffic)]
    network = NETWORK[scheme.network]
    rows = [
        ("dispatch, uplink", own.up),
        ("dispatch, downlink", own.down),
        ("combine, uplink", back.down),
        ("combine, downlink", back.up),
    ]
    if scheme.network:
        rows += [("dispatch, out of the NIC", network.out), ("dispatch, into the NIC", network.in_)]
    between = f"Between NVLink domains: {escaped(network.moves)}.\n"
    return (
        f"Moves {escaped(own.moves)}. Rows over the ports of GPU g, where e(t) counts the pairs of "
        "token t on other GPUs, r(t) the other GPUs that have its experts, h(t) whether there is "
        "any, Ein(g) and In(g) the pairs and the copies that come to g, and T(g) its tokens "
        "([all symbols](../replay/schemes/MECHANISMS.md#traffic)):\n\n"
        f"{_table(('port', 'rows'), rows)}\n{between}"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(head)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


# ---- how it works, where it wins -----------------------------------------------------------------


def _head(scheme: Scheme) -> str:
    """Head of the scheme's module, and the files beside it by their first lines."""
    module = sys.modules[type(scheme).__module__]
    path = Path(inspect.getfile(module))
    text = inspect.getdoc(module) or ""
    parts = [f"````{{eval-rst}}\n{text}\n````\n"] if path.is_relative_to(ROOT) else []
    beside = sorted(path.parent.glob("*.py")) if path.parent.name != "ep" else []
    listed = [
        f"[{code(one.name)}](../{one.relative_to(ROOT).as_posix()})\n: {of_docstring(first)}\n"
        for one in beside
        if one != path and (first := (ast.get_docstring(ast.parse(one.read_text("utf-8"))) or "").partition("\n")[0])
        if one.name != "__init__.py"
    ]
    return "\n".join([*parts, *(["Its parts:\n", *listed] if listed else [])])


@cache
def _study() -> tuple[list[str], dict[str, list[str]]]:
    """Settings of the study of all schemes, and the times of each scheme there."""
    text = (ROOT / "replay/studies/schemes.md").read_text(encoding="utf-8")
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return table[0][1:], {name: times for name, *times in table[2:]}


def _wins(scheme: Scheme) -> str:
    """Where it wins and loses, and the times of the study of all schemes."""
    heads, times = _study()
    said = [f"{name}: {escaped(text)}.\n" for name, text in (("Wins", scheme.wins), ("Loses", scheme.loses)) if text]
    if scheme.name in times:
        real = {name: [float(one.replace(",", "")) for one in row] for name, row in times.items() if name != "ideal"}
        rows = [
            (head, time, str(1 + sum(row[place] < float(time.replace(",", "")) for row in real.values())))
            for place, (head, time) in enumerate(zip(heads, times[scheme.name], strict=True))
        ]
        columns = ("DeepSeek-V3's layer in BF16 on eight H100", "us", f"place of {len(real)}")
        said.append(f"From [the study of all schemes](../replay/studies/schemes.md):\n\n{_table(columns, rows)}")
    return "## Where it wins and loses\n\n" + "\n".join(said) if said else ""


# ---- costs, memory -------------------------------------------------------------------------------


def _costs(scheme: Scheme) -> str:
    from replay.report.scheme_costs import costs_of

    rows = [
        (cost.name, "yes" if is_paid else "no", cost.about if is_paid or not why else why)
        for cost, is_paid, why in costs_of(scheme)
    ]
    return (
        f"Found in a small layer; [COSTS.md](../{ABOUT_COSTS}) has all schemes side by side.\n\n"
        f"{_table(('cost', 'paid', 'what it is, or why not'), rows)}"
    )


def _buffers(scheme: Scheme) -> str:
    """Device memory of a layer of DeepSeek-V3's size on eight GPUs."""
    import numpy as np

    from replay.chains.host_program import SYSTEMS, TYPES, preset
    from replay.model.work.layer import ExpertShape
    from replay.schemes.contract import layers

    ids = layers.draw(8 * BUFFER_TOKENS, 256, 8, seed=1)
    works = (layers.work(ids, 8, 256, shape=ExpertShape(7168, 2048), precision=types) for types in TYPES)
    work = next((one for one in works if not scheme.refuses(one)), None)
    if work is None:
        return ""
    rows = [
        (one.name, f"{np.max(one.nbytes) / 2**20:,.1f}", "stays" if one.stays else "", one.source)
        for one in scheme.buffers(work, preset(SYSTEMS[scheme.platform or "cuda"]))
    ]
    if not rows:
        return ""
    return (
        "## Buffers\n\nOf a layer of DeepSeek-V3's size on 8 GPUs with "
        f"{BUFFER_TOKENS} tokens each, on the GPU that has most, beside tokens, weights and what experts write; "
        f"what stays is kept from layer to layer.\n\n{_table(('buffer', 'MiB', 'kept', 'size from'), rows)}"
    )


# ---- options, software ---------------------------------------------------------------------------


def _options(options: Any, name: str, scheme: Scheme | None = None) -> str:
    from replay.cli.schemes import option_text
    from replay.schemes.options import about

    found = about(options)
    if not found:
        return "None.\n"
    lines = []
    for one in found:
        tried = scheme.candidates.get(one.name, ()) if scheme else ()
        tuned = f" `--tune` tries {', '.join(map(str, tried))}." if tried else ""
        values = one.values[:1].upper() + one.values[1:]
        possible = f"{escaped(values)}. Default: {code(option_text(one))}.{tuned}"
        source = f" Default from: {escaped(one.source)}." if one.source else ""
        sentences = [escaped(one.help), f"[{possible}]{{.possible}}{source}"]
        lines.append(entry(one.name, anchor_of(name, "option", one.name), sentences))
    return "\n".join(lines)


def _software(scheme: Scheme) -> str:
    from replay.chains import host_program

    listed = host_program.typical_program(scheme)
    if not listed:
        return ""
    count = host_program.num_kernels(listed)
    captured = "can" if host_program.can_be_captured(listed) else "cannot"
    rows = [
        (str(one.launches) if one.launches else "the host waits", one.name, one.moves, one.source) for one in listed
    ]
    return (
        "## Kernels\n\nOf a forward layer on 8 GPUs with 256 experts, in FP8: "
        f"{count} launches; a CUDA graph {captured} hold all of them.\n\n"
        f"{_table(('launches', 'what', 'moves in memory', 'source'), rows)}"
    )


# ---- validation ----------------------------------------------------------------------------------


def errors() -> list[list[str]]:
    """Rows of the table of errors in VALIDATION.md, which a test compares with the predictions."""
    document = (ROOT / "replay/studies/validate/VALIDATION.md").read_text(encoding="utf-8")
    table = document.partition("<!-- errors -->\n")[2].partition("<!-- /errors -->")[0]
    lines = table.strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _validated(scheme: Scheme) -> str:
    from replay.studies.validate.catalog import TABLES

    mine = {name: one.title for name, one in TABLES.items() if scheme.name in one.schemes}
    rows = [
        (mine[table], part, count, mean, median, bias)
        for table, part, count, mean, median, _, bias, _ in errors()
        if table in mine
    ]
    shared = (
        "Links, memory and multiplications, which all schemes share, are compared with tables of "
        "their own: [VALIDATION.md](../replay/studies/validate/VALIDATION.md).\n"
    )
    if not rows:
        return f"No measurement of its communication is among the tables. {shared}"
    head = ("measured", "part", "rows", "mean error %", "median %", "bias %")
    commands = fence("\n".join(f"$ moereplay validate {name}" for name in mine), "text")
    return (
        "Predictions by this scheme's own code, or of the library kernels that it calls, against "
        f"published measurements:\n\n{_table(head, rows)}\n{commands}\n{shared}"
    )


@cache
def _frozen() -> dict[str, dict[str, str]]:
    """Makespan of each frozen case under each scheme with its defaults, us."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / "tests/golden").glob("*.json")):
        runs = json.loads(path.read_text(encoding="utf-8"))
        for name, values in runs.items() if isinstance(runs, dict) else ():
            if isinstance(values, dict) and (time := values.get("totals/makespan_us")) is not None:
                found.setdefault(name, {})[path.stem] = f"{time:,.3f}"
    return found


def _golden(scheme: Scheme) -> str:
    rows = _frozen().get(scheme.name)
    if not rows:
        return ""
    return (
        "## Golden numbers\n\nMakespans of small cases that tests hold still to the picosecond "
        "(`tests/golden`); they say that nothing moved, not that a value is right.\n\n"
        f"{_table(('case', 'us'), rows.items())}"
    )


# ---- tensor parallelism --------------------------------------------------------------------------


def _tensor_page() -> str:
    from replay.schemes.registry import TENSOR_SCHEMES as SCHEMES

    head = (
        "# Schemes of tensor parallelism\n\n[TENSOR.md](../replay/experiments/dense/TENSOR.md) "
        "says how they work and how far they are validated; "
        "[`moereplay tensor schemes`](../commands/tensor-schemes.md) prints this page. A *share* "
        "is the rows that one of N GPUs owns: tokens / N.\n"
    )
    return "\n".join([head, *(_tensor_scheme(scheme) for scheme in SCHEMES.values())])


def _tensor_scheme(scheme: TensorScheme) -> str:
    from replay.schemes.tp.traffic import GATHERS, REDUCES

    gather, reduce = GATHERS[scheme.traffic.gather], REDUCES[scheme.traffic.reduce]
    rows = [(what, one.moves, one.up, one.down) for what, one in (("gather", gather), ("reduction", reduce))]
    facts = {
        "source": scheme.source,
        "assumes": scheme.assumes or "nothing beyond its source",
        "proposes": ", ".join(sorted(scheme.proposes)),
        "needs": ", ".join(sorted(scheme.needs)),
    }
    lines = [f"## {escaped(scheme.name)}\n\n{escaped(scheme.summary)}.\n"]
    lines += [f"{name}\n: {escaped(text)}\n" for name, text in facts.items() if text]
    lines.append(_table(("", "moves", "shares up", "shares down"), rows))
    lines.append(_options(scheme.options, scheme.name))
    return "\n".join(lines)
