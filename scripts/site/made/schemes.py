"""A page for each scheme, from the registry: a scheme that is new has one by being there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from made import ROOT, Made
from made.drawing import svg
from made.merged import Merged, merged
from made.text import LINK, anchor_of, code, entry, escaped, fence, toctree

if TYPE_CHECKING:
    from replay.schemes import Scheme
    from replay.schemes.tp.base import TensorScheme

FOLDER = "replay/schemes"
RANKS, TOKENS, EXPERTS, TOPK, HIDDEN = 4, 8, 8, 2, 512
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
        "scheme in a file of your own. [MECHANISMS.md](../replay/schemes/MECHANISMS.md) and "
        "[COSTS.md](../replay/schemes/COSTS.md) compare them.\n\n"
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
        _prose(scheme),
        "## Options\n\n" + _options(scheme.options, scheme.name, scheme),
        _costs(scheme),
        _software(scheme),
        "## How it is validated\n\n" + _validated(scheme),
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


# ---- what documents say --------------------------------------------------------------------------


@cache
def _mechanisms() -> dict[str, str]:
    """What MECHANISMS.md says, by the first file or folder that its text names."""
    text = (ROOT / FOLDER / "MECHANISMS.md").read_text(encoding="utf-8")
    own = text.partition("\n## Each scheme's own\n")[2].partition("\n## ")[0]
    found = {}
    for part in re.split(r"\n(?=\*\*[^*\n]+\*\* \(`)", own):
        if match := re.match(r"\*\*[^*\n]+\*\* \(`([^`]+)`", part.strip()):
            found[match[1]] = part.strip()
    return found


def _prose(scheme: Scheme) -> str:
    """The scheme's part of MECHANISMS.md: of its file, or else of its folder."""
    module = type(scheme).__module__.removeprefix("replay.schemes.").replace(".", "/") + ".py"
    mine = [name for name in _mechanisms() if module == name or module.startswith(name)]
    if not mine:
        return ""
    return f"## How it works\n\n{_moved(_mechanisms()[max(mine, key=len)], FOLDER)}\n"


def _moved(text: str, folder: str) -> str:
    """A document's text with links as they are from this folder of pages."""

    def replaced(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if not target:
            return anchor
        return posixpath.relpath(posixpath.join(folder, target), "schemes") + anchor

    return LINK.sub(replaced, text)


@cache
def _costs_by_scheme() -> dict[str, list[tuple[str, str, str, str]]]:
    """(section, cost, way, what that is) of every cell of COSTS.md, by scheme."""
    text = (ROOT / ABOUT_COSTS).read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    found: dict[str, list[tuple[str, str, str, str]]] = {}
    for section, said in zip(parts[1::2], parts[2::2], strict=True):
        table = [line for line in said.splitlines() if line.startswith("| ")]
        if not table or not table[0].startswith("| scheme |"):
            continue
        head, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
        for name, *cells in rows:
            for cost, way in zip(head[1:], cells, strict=True):
                listed = said.partition(f"\n**{cost}**\n")[2].partition("\n**")[0]
                entries = dict(re.findall(r"^- \*(.+?)\*: (.+(?:\n  .+)*)", listed, re.MULTILINE))
                why = " ".join(entries.get(way, "").split())
                found.setdefault(name.strip("`"), []).append((section, cost, way, why))
    return found


def _costs(scheme: Scheme) -> str:
    costs = _costs_by_scheme().get(scheme.name, [])
    if not costs:
        return ""
    lines = [
        "## Costs\n",
        f"From [COSTS.md](../{ABOUT_COSTS}), which has all schemes side by side.\n",
    ]
    last = ""
    for section, cost, way, why in costs:
        if section != last:
            lines.append(f"### {section}\n")
            last = section
        lines.append(f"{cost}: *{way}*\n: {_moved(why, FOLDER)}\n")
    return "\n".join(lines)


# ---- options, software ---------------------------------------------------------------------------


def _options(options: Any, name: str, scheme: Scheme | None = None) -> str:
    from replay.cli.schemes import shown
    from replay.schemes.options import about

    found = about(options)
    if not found:
        return "None.\n"
    lines = []
    for one in found:
        tried = scheme.candidates.get(one.name, ()) if scheme else ()
        tuned = f" `--tune` tries {', '.join(map(str, tried))}." if tried else ""
        values = one.values[:1].upper() + one.values[1:]
        possible = f"{escaped(values)}. Default: {code(shown(one))}.{tuned}"
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
