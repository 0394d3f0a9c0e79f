"""What every scheme must do, whatever it is: a scheme is under test when it is listed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice

import engine_oracle
import numpy as np
import pytest
from loops import every
from one_layer import replay_layer
from tiers import mostly_extended

from hwmodel import System
from replay.chains.layer import build_layer
from replay.engine import TaskGraph, Timeline, schedule
from replay.errors import UserError
from replay.model.machine.kinds import Kind
from replay.model.work.layer import LayerWork
from replay.schemes import SCHEMES, find
from replay.schemes.contract import CHECKS
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.case import Case
from replay.schemes.contract.examine import case_of, check_declaration, examine_case
from replay.schemes.contract.graph_facts import Dependencies
from replay.schemes.ep.base import LayerRefusedError, Scheme
from replay.schemes.options import about
from replay.schemes.registry import COMPARED, EXAMPLES

SystemFor = Callable[[int], System]


EACH = ("tiny, holes", "tiny, backward", "shared experts fp8", small_layers.WIDE)
"""Layers on which every scheme is examined by default."""
EACH_ACROSS = ("2 domains of 2", "2 domains of 8, uneven ranks")
"""The same on several domains; a scheme that takes the first needs not the second."""
DEALT = (
    small_layers.ONE_TOKEN,
    *("fp8 rows into bf16 GEMMs", "bf16 rows into fp8 GEMMs, fp32 rows back", "odd row"),
    *("experts do not divide", "experts in two slices", "16 ranks", "no tokens", "one gpu"),
    *("all to one expert", "uneven ranks", "more ranks than experts", "experts without tokens"),
    *("some slots empty", "backward, uneven ranks", small_layers.ONE_SENDER),
)
"""Ways to be special of which a scheme has the next few by default, each in its turn."""
DEALT_ACROSS = (
    *("tiny, 2 domains of 2", "3 domains of 1", "2 domains of 3, uneven ranks"),
    *("backward, 2 domains of 2", "tiny, 2 domains of 8", "backward, 2 domains of 8"),
)
"""The same on several domains."""
NUM_DEALT, NUM_DEALT_ACROSS = 2, 1


def takes(scheme: str, name: str) -> bool:
    """Whether a scheme has code for a layer."""
    return not case_of(find(scheme), name).refusal


@cache
def covering() -> dict[str, tuple[str, ...]]:
    """Layers of the default tier by scheme; all others are extended.

    Beside the layers that each scheme has, special ones are dealt out in the order of both lists. A
    scheme takes the first that it has code for, and these go behind the others.
    """
    found: dict[str, tuple[str, ...]] = {}
    waiting, across = list(DEALT), list(DEALT_ACROSS)
    for scheme in [*COMPARED, *EXAMPLES]:
        has_network = bool(find(scheme).network)
        own = [name for name in EACH_ACROSS if has_network and takes(scheme, name)][:1]
        for names, most in ((waiting, NUM_DEALT), (across, NUM_DEALT_ACROSS * has_network)):
            dealt = list(islice((name for name in names if takes(scheme, name)), most))
            names[:] = [*(name for name in names if name not in dealt), *dealt]
            own += dealt
        found[scheme] = (*EACH, *own)
    return found


ALL_LAYERS = (*small_layers.LAYERS, *small_layers.ACROSS)
SPECIAL = {*EACH, *EACH_ACROSS, *DEALT, *DEALT_ACROSS, *small_layers.CHAINED, *small_layers.WAITED}


def examined(place: int, scheme: str) -> bool:
    """Whether a scheme is examined on the layer at a place, in one of both tiers.

    On what `covering` gives it, on a sixth of the other special layers and a twelfth of the rest: schemes
    take them by turns.
    """
    name, turn = ALL_LAYERS[place], [*COMPARED, *EXAMPLES].index(scheme)
    if name in small_layers.ACROSS and not find(scheme).network:
        return False
    return name in covering()[scheme] or (place + turn) % (6 if name in SPECIAL else 12) == 0


CASES = [
    pytest.param((name, scheme), id=f"{name}-{scheme}")
    for place, name in enumerate(ALL_LAYERS)
    for scheme in [*COMPARED, *EXAMPLES]
    if examined(place, scheme) and name in covering()[scheme]
]
OTHERS = {
    name: [scheme for scheme in [*COMPARED, *EXAMPLES] if examined(place, scheme) and name not in covering()[scheme]]
    for place, name in enumerate(ALL_LAYERS)
}
"""Schemes of a layer that are extended: one test of pytest each would be hundreds."""


@pytest.mark.parametrize("case", CASES)
def test_the_contract(case: tuple[str, str]) -> None:
    """All that is read from one graph and schedule: a test of its own each would be 3,000."""
    keeps_the_contract(*case)


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name, schemes in OTHERS.items() if schemes])
def test_the_contract_of_the_others(name: str) -> None:
    every("scheme", OTHERS[name])(keeps_the_contract)(name)


def keeps_the_contract(name: str, scheme: str) -> None:
    case = case_of(find(scheme), name)
    assert not list(examine_case(case))
    if not case.refusal:
        time_bounds_and_path(case)
        # On machines that are out of balance, and with other options: test_ideal.py.
        assert case.timeline.makespan_ps >= ideal_ps(case.name)


def other_rows_back(layer: LayerWork) -> bool:
    """Whether rows have several types, of those that a push of FlashInfer takes at all."""
    types = layer.precision
    rows = types.combine, *((types.dispatch,) if types.gemm == "bf16" else ())
    return any(one != types.gemm for one in rows)


def not_compiled(layer: LayerWork) -> bool:
    """Rows of another type than the GEMMs read, or a number of choices without a kernel."""
    topk = layer.expert_ids.shape[1]
    return layer.precision.dispatch != layer.precision.gemm or topk not in (1, 2, 4, 6, 8, 10, 16)


UNEVEN_EXPERTS = {
    name
    for name, make in small_layers.LAYERS.items()
    if len(set(np.bincount(make().placement.expert_rank, minlength=make().num_ranks))) > 1
}
MORE = {
    "deepep-ll": {small_layers.ONE_SENDER},  # 1024 tokens at most
    "nccl-ep": {small_layers.ONE_SENDER} | UNEVEN_EXPERTS,
    "nccl-ep-ht": UNEVEN_EXPERTS,
    "hybrid-ep": {  # an even number of ranks
        name for name, make in small_layers.LAYERS.items() if make().num_ranks % 2
    },
    "fastermoe": UNEVEN_EXPERTS,
    "flashinfer-push": UNEVEN_EXPERTS | {name for name, make in small_layers.LAYERS.items() if other_rows_back(make())},
    "trtllm-alltoall": UNEVEN_EXPERTS | {name for name, make in small_layers.LAYERS.items() if not_compiled(make())},
    # They read rows as they come.
    "megamoe": {"fp8 rows into bf16 GEMMs"},
    "megamoe-hopper": {"fp8 rows into bf16 GEMMs"},
    "tutel": UNEVEN_EXPERTS,
}
"""Layers that are refused for more than a scheme's facts."""


def test_layers_that_schemes_refuse_are_few_and_cannot_be_built(system_for: SystemFor) -> None:
    refused = {
        scheme: [name for name, make in small_layers.LAYERS.items() if SCHEMES[scheme].refuses(make())]
        for scheme in SCHEMES
    }
    for scheme, names in refused.items():
        facts = {name for name, make in small_layers.LAYERS.items() if Scheme.refuses(SCHEMES[scheme], make())}
        assert set(names) == facts | MORE.get(scheme, set())
        assert len(names) < len(small_layers.LAYERS) // 2  # the contract has something to examine
        for name in names:
            layer = small_layers.LAYERS[name]()
            with pytest.raises(LayerRefusedError, match=f"scheme '{scheme}': its "):
                build_layer(layer, system_for(layer.num_ranks), SCHEMES[scheme])


@every("scheme", [*SCHEMES, *EXAMPLES])
def test_what_a_scheme_says_about_itself(scheme: str) -> None:
    assert not list(check_declaration(find(scheme)))


def test_every_check_has_layers_that_exist_and_is_made_by_default() -> None:
    examined = {name for names in covering().values() for name in names}
    for check in CHECKS.values():
        assert set(check.layers) <= {*small_layers.LAYERS, *small_layers.ACROSS}
        assert not examined.isdisjoint(check.layers)


def test_every_special_layer_is_examined_under_some_scheme_by_default() -> None:
    examined = {name for scheme, names in covering().items() for name in names if takes(scheme, name)}
    assert {*EACH, *EACH_ACROSS, *DEALT, *DEALT_ACROSS} <= examined
    assert max(map(len, covering().values())) <= 9


def time_bounds_and_path(case: Case) -> None:
    """Bounds are below the time, and the parts of the critical path add up to it."""
    layer = case.work
    result = case.result.measures
    bounds = result.bounds_us
    each = (
        bounds.port_us,
        bounds.phases_us or 0.0,
        bounds.sm_us,
        bounds.memory_us,
        bounds.chain_us,
    )
    assert bounds.largest_us == max(each)
    assert bounds.largest_us <= result.makespan_us
    assert (bounds.phases_us is not None) == case.scheme.phases_separated
    if (layer.expert_ids >= 0).any():
        assert min(bounds.sm_us, bounds.memory_us, bounds.chain_us) > 0
    assert bounds.port_us > 0 or not any(result.payload_bytes["dispatch"].uplink)
    path = result.critical_path
    parts = round(sum(path.by_cause_us.values()) * 1e6)
    assert parts == round(result.makespan_us * 1e6)
    for table in (path.by_kind_us, path.by_resource_us):
        assert round(sum(sum(row.values()) for row in table.values()) * 1e6) == parts
    assert len(result.rank_end_us) == layer.num_ranks
    for exposed, end in zip(result.exposed_communication_us_per_gpu, result.rank_end_us, strict=True):
        assert 0 <= exposed <= end <= result.makespan_us
    assert all(0 <= share.max <= 1 for share in result.utilisation.values())


@cache
def ideal_ps(name: str) -> int:
    return case_of(SCHEMES["ideal"], name).timeline.makespan_ps


def test_a_replay_of_the_layer_is_what_the_contract_looks_at(system_for: SystemFor) -> None:
    layer = small_layers.LAYERS["zipf 8 ranks"]()
    case = Case(SCHEMES["deepep"], "zipf 8 ranks", layer)
    assert case.result == replay_layer(layer, system_for(8), SCHEMES["deepep"])


@every("name", small_layers.ALL)
def test_ideal_has_no_communication(name: str, system_for: SystemFor) -> None:
    layer = small_layers.ALL[name]()
    result = replay_layer(layer, system_for(layer.num_ranks), SCHEMES["ideal"]).measures
    for phase in ("dispatch", "combine"):
        for ports in (result.payload_bytes[phase], result.wire_bytes[phase]):
            assert not any(ports.uplink + ports.downlink)
        assert phase not in result.phases
    assert result.bounds_us.port_us == 0
    # What is left is waiting for GPUs with more work; the one with most waits for nobody.
    assert min(result.exposed_communication_us_per_gpu) == 0
    if layer.num_ranks == 1:
        assert not any(result.exposed_communication_us_per_gpu)


# ---- who waits for whom ------------------------------------------------------------------------


def run(layer: LayerWork, system: System, scheme: str) -> tuple[Timeline, list[int], list[int]]:
    """Schedule a layer; also the tasks it starts and ends with, one a rank."""
    graph, ends, _ = build_layer(layer, system, SCHEMES[scheme])
    return schedule(graph), list(range(layer.num_ranks)), ends.tolist()


@every("scheme", [name for name in SCHEMES if name in ("dysharp", "dysharp-fusion-only")])
@every("name", ["several tiles", "zipf 8 ranks", "some slots empty"])
def test_every_row_takes_one_slot_and_its_token_waits_for_that_tile(
    name: str, scheme: str, system_for: SystemFor
) -> None:
    layer = small_layers.ALL[name]()
    timeline, _, ends = run(layer, system_for(8), scheme)
    graph, waits = timeline.graph, Dependencies(timeline)
    gates = graph.gates
    sender = {}
    for src, dst in zip(*(ids.tolist() for ids in graph.edges()), strict=True):
        if graph.kind[src] == Kind.DISPATCH_UP:
            sender[dst] = int(graph.rank[src])
    found: Counter[tuple[int, int]] = Counter()
    before_end = [waits.before([end]) for end in ends]
    for gate in range(len(gates)):
        tiles = slice(gates.tile_indptr[gate], gates.tile_indptr[gate + 1])
        expert = tile_expert(waits, graph, int(gates.tile_first[tiles][0]))
        for row in range(gates.member_indptr[gate], gates.member_indptr[gate + 1]):
            member = int(gates.member_task[row])
            owner = sender.get(member, int(graph.rank[member]))
            found[owner, expert] += 1
            tile = timeline.landed_tile[row]
            assert int(gates.tile_last[tile]) in before_end[owner]
            assert timeline.visible_ps[member] <= timeline.start_ps[gates.tile_first[tile]]
    assert found == Counter(
        (owner, expert)
        for owner, row in zip(layer.source_rank.tolist(), layer.expert_ids.tolist(), strict=True)
        for expert in row
        if expert >= 0
    )


def tile_expert(waits: Dependencies, graph: TaskGraph, tile_first: int) -> int:
    """Expert of the first GEMM-1 task behind a tile's mark."""
    seen = {tile_first}
    while True:
        seen = {follower for task in seen for follower in waits.followers[task]}
        tags = {int(graph.tag[task]) for task in seen if graph.kind[task] == Kind.GEMM1}
        if tags:
            assert len(tags) == 1
            return tags.pop()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", mostly_extended(small_layers.TINY, ("skewed", "backward")))
def test_engine_and_its_slow_twin_agree(name: str, scheme: str, system_for: SystemFor) -> None:
    layer = small_layers.TINY[name]()
    if SCHEMES[scheme].refuses(layer):
        return
    timeline, _, _ = run(layer, system_for(8), scheme)
    slow = engine_oracle.simulate(timeline.graph)
    tasks = range(timeline.graph.num_tasks)
    assert timeline.start_ps.tolist() == [slow.start[task] for task in tasks]
    assert timeline.end_ps.tolist() == [slow.end[task] for task in tasks]


# ---- options -----------------------------------------------------------------------------------


@every("scheme", SCHEMES)
def test_huge_options_run_or_are_refused_by_name(scheme: str, system_for: SystemFor) -> None:
    layer, system = next(iter(small_layers.TINY.values()))(), system_for(8)
    for option in about(SCHEMES[scheme].options):
        name, most = option.name, option.most or 2**31 - 1
        if type(option.default) is not int:
            continue
        with pytest.raises(UserError, match=f"option {name}=.* at most {most}$"):
            SCHEMES[scheme].with_options({name: str(2**31)})
        with contextlib.suppress(UserError):
            replay_layer(layer, system, SCHEMES[scheme].with_options({name: 2**31 - 1}))


# ---- the same input, the same output -----------------------------------------------------------

REPLAY_ALL = """
import replay, tracegen
trace = tracegen.generate.generate(
    "zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=6, layers=1, seed=4, skew=0.8
)
text = replay.compare(trace, list(replay.SCHEMES), system="dgx-h100").to_json()
"""
PRINTED = f"{REPLAY_ALL}\nimport sys\nsys.stdout.write(text)"


@pytest.mark.extended
def test_every_process_gives_the_same_bytes() -> None:
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2024"
    other = subprocess.run(
        [sys.executable, "-c", PRINTED],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
    ).stdout
    here: dict[str, str] = {}
    exec(REPLAY_ALL, here)  # in a process that has replayed much else before
    assert here["text"].encode() == other
    assert here["text"].count('"run_id"') == len(SCHEMES)
