"""Sentences above and below the tables: inputs, what is left out, and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.chains.node_sampling import error_of
from replay.errors import quote_names
from replay.experiments.base.names import row_names, short_placement
from replay.report.comparisons import left_out_alike, star_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.layer.result import Comparison, Result, TracedResult, Whole
    from replay.measure.result import ChainResult, LayerResult, Pairs

FOR_NVLINK = frozenset({"deepep", "deepep-ll", "deepep-v2"})
"""Schemes with DeepEP's kernels in a node, whose README asks for NVLink there (Requirements)."""
BARE = "bare"
"""Stack that is nobody's, of schemes that can have another one's kernels around their own."""
UNCERTAIN_CALLS = (
    "Costs of calls are uncertain: `moereplay compare --uncertainty 20` draws them, --stack practice:library_us=20 "
    "gives those of extensions another one, --stack bare none."
)
"""Doubt of what hosts take, and how to turn it."""
PCIE_UNIT_BYTES = 4
"""Unit in which PCIe counts packets, where NVLink has 16 bytes: PCI Express base specification."""


def outside_notes(compared: Comparison) -> list[str]:
    """Notes on hardware that the system lacks, schemes that are left out, and what lies between layers."""
    results = compared.results
    notes = star_notes(results[0].system.name, [one.scheme for one in results])
    for reason, names in left_out_alike(compared, "scheme {!r}").items():
        several = "s" if names[1:] else ""
        notes.append(f"Left out: scheme{several} {', '.join(map(repr, names))}{reason}.")
    chain = results[0].chain
    if chain is not None:
        notes.append(
            f"A step holds {chain.between_us / chain.num_steps:,.1f} us per GPU of attention, "
            f"norms, gate and shared experts; it leaves out {', '.join(chain.left_out)}."
        )
    return notes


def token_note(layer: LayerResult) -> str:
    """Note on the latency of tokens."""
    latency = layer.token_latency_us
    text = (
        f"A token takes {latency.mean_us:,.1f} us from dispatch to combine in the mean, "
        f"{latency.p50_us:,.1f} in the median, {latency.p99_us:,.1f} at the 99th percentile, "
        f"and {latency.max_us:,.1f} at most"
    )
    if layer.token_latency_from_start_us is not None:
        text += f"; from the start of the layer {layer.token_latency_from_start_us.mean_us:,.1f}"
    if layer.slowest_tokens:
        token = layer.slowest_tokens[0]
        row = f", row {token.trace_row} of the trace" if token.trace_row is not None else ""
        experts = ", ".join(map(str, token.experts))
        text += f" (token {token.token}, rank {token.rank}{row}, experts {experts})"
    return text + "."


def chain_notes(result: Result) -> list[str]:
    """Notes on the time of a chain and, where both passes run, of a pair of layers; empty without a chain."""
    if result.chain is None:
        return []
    pairs = result.chain.pairs
    return [_chain_note(result.chain), *([] if pairs is None else [_pairs_note(pairs)])]


def _chain_note(chain: ChainResult) -> str:
    """Note on the time of all layers, and with barriers."""
    makespan_us = chain.measures.makespan_us
    text = (
        f"{makespan_us:,.1f} us in all. The parts between the MoE layers take "
        f"{chain.between_us:,.1f} us per GPU; left out are {', '.join(chain.left_out)}."
    )
    if chain.barrier_us is not None:
        gained = chain.barrier_us - makespan_us
        text += (
            f" With a barrier over all GPUs after each layer: {chain.barrier_us:,.1f} us, "
            f"{gained:+,.1f} us ({gained / chain.barrier_us:+.1%})."
        )
    return text


def _pairs_note(pairs: Pairs) -> str:
    """Note on the time of a pair of layers, and the share of it in which both streams are busy."""
    pair_us, sequence_us, forward_us = (
        sum(times) / len(times) for times in (pairs.pair_us, pairs.sequence_us, pairs.forward_us)
    )
    busy = {of: f"{pairs.share(times):.1%}" for of, times in pairs.busy_us.items()}
    return (
        f"A layer forward beside a layer backward: {pair_us:,.1f} us, mean over the GPUs; one pass "
        f"after the other {sequence_us:,.1f} us ({forward_us:,.1f} and "
        f"{sequence_us - forward_us:,.1f}), {sequence_us / pair_us:.2f} times as long. "
        f"Of this time attention and gate run {busy['attention']}, shared experts "
        f"{busy['dense']}, other kernels that compute {busy['experts']}, kernels for rows "
        f"{busy['rows']}; both streams are busy {pairs.share(pairs.both_us):.1%} of it, nothing "
        f"computes {pairs.share(pairs.exposed_us):.1%} of it."
    )


NOT_ALONE = "Not the scheme alone"
"""Begins the sentence on what else differs between schemes whose times are compared."""
LAUNCHES = {
    "eager": "kernel by kernel",
    "graph": "as CUDA graphs",
    "ahead": "by hosts that are always ahead of their GPUs",
}
LAUNCHED = "Launched "
"""Begins each line on how kernels are launched."""
UNTIL = ", each until a host waits,"
"""What graphs hold that were asked for; without, they are taken only where no host waits."""


def launch_lines(results: Sequence[TracedResult]) -> list[str]:
    """Lines on how kernels are launched, with the rows for which that differs."""
    used: dict[str, list[int]] = {}
    for place, result in enumerate(results):
        how = LAUNCHES[result.launch]
        if result.spec.launch == "graph":
            how += UNTIL
        if result.stack is not None:
            how += f" by hosts of {result.stack.name}"
        elif result.launch != "ahead":
            how += f" by bare hosts{_why_bare(result)}"
        used.setdefault(how, []).append(place)
    some = len(used) > 1
    return [f"{LAUNCHED}{how}{': ' + _rows_text(results, rows) if some else ''}." for how, rows in used.items()]


def _why_bare(result: TracedResult) -> str:
    """Reason, in brackets, why hosts are bare that nobody asked for."""
    if result.spec.stack is not None:
        return ""
    if result.spec.communication_only:
        return " (calls of a stack are of whole layers)"
    if "host.speed" not in result.system.values:
        return f" (nothing is known of those of {result.system.name})"
    return f" (no {result.types.gemm} products in the list of what runs it)"


def launch_text(results: Sequence[TracedResult]) -> str:
    """Say whose hosts launched results, in half a sentence."""
    return f"launched by {', '.join(dict.fromkeys(one.hosts for one in results))}"


def mixed_hosts(results: Sequence[TracedResult]) -> list[str]:
    """Sentence, without its end, on results of which bare hosts launched some; none where they launched all or none."""
    bare = [place for place, one in enumerate(results) if one.stack is None]
    if len(bare) in (0, len(results)):
        return []
    return [f"{NOT_ALONE}: bare hosts launched {_rows_text(results, bare)}, those of a stack all others"]


def launch_notes(results: Sequence[TracedResult]) -> list[str]:
    """Notes on the host time that launches are charged, with the rows for which they differ."""
    outside: dict[str, list[int]] = {}
    knowing = {one.stack.name for one in results if one.stack is not None and one.stack.knows}
    for place, result in enumerate(results):
        if result.stack is not None and not result.stack.knows:
            outside.setdefault(result.stack.name, []).append(place)
    alone = [stack for stack in outside if stack not in knowing]
    strange = {stack: _rows_text(results, rows) for stack, rows in outside.items() if stack in knowing}
    if alone:
        strange[", ".join(alone)] = "all that they launch" if alone[1:] else "all"
    bare = [place for place, one in enumerate(results) if one.stack is None]
    whose = f": {_rows_text(results, bare)}" if len(bare) < len(results) else ""
    return [
        *([f"Of host time launches and waits alone are charged, nothing of a framework's{whose}."] if bare else []),
        *(
            f"Not in the list of {stack}, so that kernels for rows are calls of an extension: {names}."
            for stack, names in strange.items()
        ),
        *([UNCERTAIN_CALLS] if len(bare) < len(results) else []),
    ]


def _rows_text(results: Sequence[TracedResult], rows: Sequence[int]) -> str:
    """Names of some rows, in their order: of a scheme alone where all of its rows are among them."""
    names, chosen = row_names(results, marked=False), set(rows)
    schemes = [one.scheme.name for one in results]
    whole = {name for name in schemes if all(at in chosen for at, one in enumerate(schemes) if one == name)}
    return quote_names(dict.fromkeys(schemes[at] if schemes[at] in whole else names[at] for at in sorted(chosen)))


def around_note(results: Sequence[Result]) -> str:
    """Note on the software whose kernels stand around the exchange, which each scheme brings."""
    said = []
    for name, scheme in zip(row_names(results, marked=False), (one.scheme for one in results), strict=True):
        stack = scheme.options.get("stack")
        option = f"`--option {scheme.name}.stack"
        if stack is None:
            said.append(f"{name} those of {scheme.source}")
        elif stack == BARE:
            said.append(f"{name} none ({option}` is bare)")
        else:
            said.append(f"{name} those of {stack} ({option}=bare` leaves them out)")
    return f"Each scheme brings the kernels around its exchange: {'; '.join(dict.fromkeys(said))}."


def tuned_notes(results: Sequence[Result], *, name_all: bool = False) -> Iterator[str]:
    """Lines on options that were chosen by replay; with `name_all` also on schemes without a choice."""
    for name, scheme in zip(row_names(results, marked=False), (result.scheme for result in results), strict=True):
        if scheme.tuned:
            chosen = ", ".join(f"{option}={scheme.options[option]}" for option in scheme.tuned[0].options)
            yield f"{name}: chose {chosen} out of {len(scheme.tuned)} tried."
        elif name_all:
            yield f"{name}: has nothing to choose."


def heading(*results: Result) -> str:
    """Inputs that results share which differ in scheme and placement alone."""
    result = results[0]
    trace, batch, types = result.trace, result.batch, result.types
    placed = {one.placement: one for one in results}
    placement = f"{result.placement} placement" if len(placed) == 1 else "several placements"
    each = result.spec.expert_tp
    sliced = "" if each == 1 else f", each expert on {each} GPUs"
    kind = result.spec.interleave
    turns = "passes" if result.spec.pairs_passes else "micro-batches"
    turns = "" if kind == "off" else f", {turns} overlap ({kind})"
    several = len(result.layers) > 1
    first = " (first layer)" if several else " (mean of layers)" if result.chain else ""
    lines = [
        (
            f"{trace.model}, {trace.num_experts} experts, top-{trace.topk}, "
            f"hidden {trace.hidden}: {trace.title or trace.content_id[:12]}"
        ),
        (
            f"{result.system.name}, {batch.num_ranks} ranks, {batch.phase} step "
            f"{batch.step}, {int(result.parts[0].routing.num_tokens):,} tokens "
            f"({batch.batching}), {placement}{sliced}{turns}"
        ),
        str(types),
        *launch_lines(results),
    ]
    if result.spec.communication_only:
        lines[:0] = ["Communication alone: dispatch and combine, without experts"]
    lines += [_estimate_note(one, one.estimate) for one in results if one.estimate is not None]
    lines += [_sampled_nodes(one) for one in results if _is_sampled(one)]
    for one in placed.values():
        routing = one.parts[0].routing
        under = f"{short_placement(one.spec.placement)}: " if len(placed) > 1 else ""
        lines.append(
            f"{under}{routing.mean_distinct_remote_ranks:.2f} distinct remote GPUs per token, "
            f"busiest rank {routing.rank_imbalance:.2f} x the mean{first}"
        )
    lines += machine_notes(results)
    shared = batch.num_slots_sharing_a_request
    if shared:
        requests = batch.num_requests or 0
        lines.append(
            f"note: {requests} requests fill {shared + requests} slots; "
            f"{shared} slots run a request of another slot at another position"
        )
    if batch.num_steps is not None:
        lines.append(
            f"note: step {batch.step + result.spec.steps - 1} is beyond the trace: it wraps after "
            f"{batch.num_steps:,} steps, when every slot has run through its requests"
        )
    return "\n".join(lines)


def machine_notes(results: Sequence[Result]) -> list[str]:
    """Notes on GPUs of the machine that take no part, and on kernels that are written for other links."""
    system, ranks = results[0].system, results[0].batch.num_ranks
    notes = []
    if system.num_gpus > ranks:
        notes.append(
            f"note: {ranks} of the {system.num_gpus} GPUs of {system.name} take part, as the batch has so many "
            "ranks; the others do nothing"
        )
    strange = dict.fromkeys(one.scheme.name for one in results if one.scheme.name in FOR_NVLINK)
    if strange and system.values.get("link.flit_bytes") == PCIE_UNIT_BYTES:
        notes.append(
            f"note: {', '.join(strange)}: DeepEP's kernels in a node are written for NVLink; {system.name} has PCIe, "
            "of which no measurement of them is known here"
        )
    return notes


def _is_sampled(result: Result) -> bool:
    return any(layer.sampled_nodes is not None for layer in result.layers)


def _sampled_nodes(result: Result) -> str:
    """Note on the nodes that were replayed in full, and the error of such replays."""
    nodes = result.layers[0].sampled_nodes or []
    error = error_of(result.scheme.name, len(nodes))
    which = f"node{'s' if nodes[1:] else ''} {', '.join(map(str, nodes))}"
    several = " in the first layer" if result.layers[1:] else ""
    whose = "" if error.is_own else ", of other schemes"
    return (
        f"{result.scheme.name}: {which} replayed in full{several}, bytes and means are theirs; "
        f"error of the time {error.mean:.1%} in the mean, {error.largest:.1%} at most, in "
        f"{error.replays} exact replays of up to {error.most_gpus} GPUs{whose}"
    )


def _estimate_note(result: Result, whole: Whole) -> str:
    """The whole of which only some layers were replayed."""
    margin = (whole.high_us - whole.low_us) / 2 / whole.makespan_us if whole.makespan_us else 0.0
    return (
        f"{result.scheme.name}: {whole.num_replayed} of {whole.num_layers} layers were replayed; "
        f"all of them take an estimated {whole.makespan_us:,.1f} us +- {margin:.1%} "
        f"({whole.confidence:.0%} confidence)"
    )
