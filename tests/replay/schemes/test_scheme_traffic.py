"""Bytes on every port: closed forms, a count token by token, and the engine's graph agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from closed_rows import closed_form_rows, nic_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loops import every
from packets import response_packets, write_packets
from tiers import mostly_extended

from hwmodel import System
from replay.chains.layer import build_layer
from replay.engine import TaskGraph
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import byte_counts as traffic_oracle
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.case import Case
from replay.schemes.contract.graph_facts import port_bytes
from replay.schemes.ep.traffic import NETWORK, TRAFFIC

SystemFor = Callable[[int], System]

UP_DOWN = {
    "dispatch": (Kind.DISPATCH_UP, Kind.DISPATCH_DOWN),
    "combine": (Kind.COMBINE_UP, Kind.COMBINE_DOWN),
}


def row_bytes(layer: LayerWork) -> dict[str, int]:
    """Bytes of a row each way, from the definition of the number types."""
    hidden, precision = layer.shape.hidden, layer.precision
    scales = 4 * -(-hidden // 128)
    sizes = {"bf16": 2 * hidden, "fp8": hidden + scales, "fp32": 4 * hidden}
    return {"dispatch": sizes[precision.dispatch], "combine": sizes[precision.combine]}


def expected_bytes(layer: LayerWork, traffic: str) -> dict[str, Counter[tuple[str, int]]]:
    """Payload of every port, counted row by row and by the closed forms, which must agree."""
    routing = small_layers.routing_of(layer)
    counted = traffic_oracle.port_rows(routing, traffic)
    closed = closed_form_rows(routing, traffic)
    sizes = row_bytes(layer)
    for phase, rows in counted.items():
        assert rows == +closed[phase], phase
    return {
        phase: Counter({port: count * sizes[phase] for port, count in rows.items()}) for phase, rows in counted.items()
    }


@every("traffic", TRAFFIC)
@every("name", small_layers.ALL)
def test_closed_forms_are_the_count(name: str, traffic: str) -> None:
    expected_bytes(small_layers.ALL[name](), traffic)


@every("network", [name for name in NETWORK if name not in ("", "free")])
@every("name", small_layers.ACROSS)
def test_closed_forms_between_domains_are_the_count(name: str, network: str) -> None:
    size, make = small_layers.ACROSS[name]
    routing = small_layers.routing_of(make(), size)
    for traffic in ("ring",) if network == "rings" else ("pair", "copy", "pair-copy"):
        closed = nic_rows(routing, traffic, network)
        for phase, rows in traffic_oracle.port_rows(routing, traffic, network).items():
            by_nic = {port: count for port, count in rows.items() if port[0].startswith("nic")}
            assert by_nic == {port: rows for port, rows in closed[phase].items() if rows}, (
                traffic,
                phase,
            )


@every("traffic", TRAFFIC)
@every("name", ["zipf 8 ranks", "uneven ranks"])
def test_one_domain_has_one_way_of_counting(name: str, traffic: str) -> None:
    """A network that rows never pass changes no count."""
    layer = small_layers.ALL[name]()
    alone = traffic_oracle.port_rows(small_layers.routing_of(layer), traffic)
    for network in NETWORK:
        routing = small_layers.routing_of(layer, domain_size=8)
        assert traffic_oracle.port_rows(routing, traffic, network) == alone


@every("scheme", SCHEMES)
@every("name", ["zipf 4 ranks fp8", "a rank without tokens", "no tokens"])
def test_results_report_these_bytes(name: str, scheme: str) -> None:
    layer = small_layers.ALL[name]()
    if SCHEMES[scheme].refuses(layer):  # such as an odd number of GPUs for `hybrid-ep`
        return
    case = Case(SCHEMES[scheme], name, layer)  # one graph for both
    result, graph = case.result.measures, case.built.graph
    reported = {"payload": result.payload_bytes, "wire": result.wire_bytes}
    counted = {
        "payload": expected_bytes(SCHEMES[scheme].carries(layer).work, SCHEMES[scheme].traffic),
        "wire": port_bytes(graph, "wire"),
    }
    for what, phases in reported.items():
        for phase, ports in phases.items():
            for way in ("uplink", "downlink"):
                assert getattr(ports, way) == [counted[what][phase][way, gpu] for gpu in range(layer.num_ranks)]
    for phase, carried in result.payload_bytes.items():
        port = result.busiest_port[phase]
        assert port.payload_bytes == getattr(carried, port.direction)[port.gpu]


@st.composite
def layers(draw: st.DrawFn) -> LayerWork:
    """Any small layer: any ranks, experts, owners, placement, holes in the rows."""
    num_ranks = draw(st.integers(1, 6))
    num_experts = draw(st.integers(1, 10))
    k = draw(st.integers(1, num_experts))
    counts = draw(st.lists(st.integers(0, 6), min_size=num_ranks, max_size=num_ranks))
    placement = draw(st.lists(st.integers(0, num_ranks - 1), min_size=num_experts, max_size=num_experts))
    seed = draw(st.integers(0, 2**16))
    skew = draw(st.sampled_from([0.0, 1.0, 3.0]))
    ids = small_layers.draw(sum(counts), num_experts, k, skew=skew, seed=seed)
    holes = draw(st.sampled_from([0.0, 0.0, 0.4, 1.0]))
    ids[np.random.default_rng(seed).random(ids.shape) < holes] = -1
    return small_layers.work(
        ids,
        num_ranks,
        num_experts,
        tokens_of_rank=counts,
        placement=placement,
        precision=draw(st.sampled_from(["bf16", "fp8", "fp32"])),
        shape=ExpertShape(draw(st.sampled_from([64, 100])), 48),
    )


@settings(max_examples=40)
@given(layer=layers(), scheme=st.sampled_from(sorted(SCHEMES)))
def test_payload_of_any_layer(system_for: SystemFor, layer: LayerWork, scheme: str) -> None:
    assume(not SCHEMES[scheme].refuses(layer))  # such as FP32 rows for `deepep-ll`
    graph, _, _ = build_layer(layer, system_for(layer.num_ranks), SCHEMES[scheme])
    carried = SCHEMES[scheme].carries(layer).work
    assert port_bytes(graph) == expected_bytes(carried, SCHEMES[scheme].traffic)


@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES))
def test_order_of_a_ranks_tokens_does_not_change_its_bytes(scheme: str, system_for: SystemFor) -> None:
    layer = small_layers.ALL["zipf 8 ranks"]()
    rng = np.random.default_rng(11)
    order = np.concatenate(
        [rng.permutation(np.arange(*layer.tokens_of_rank[rank : rank + 2])) for rank in range(layer.num_ranks)]
    )
    shuffled = LayerWork(
        layer.expert_ids[order],
        layer.source_rank.astype(np.int32),
        layer.placement,
        layer.shape,
        layer.precision,
    )
    assert (shuffled.expert_ids != layer.expert_ids).any()
    payloads = [port_bytes(build_layer(work, system_for(8), SCHEMES[scheme])[0]) for work in (layer, shuffled)]
    assert payloads[0] == payloads[1]


# ---- bytes on the wire -------------------------------------------------------------------------

WIRE_LAYER = {"hidden": 700, "intermediate": 32}  # rows that end in the middle of a packet


def wire_by_port(graph: TaskGraph, phase: str) -> dict[tuple[str, int], int]:
    """Wire bytes of the tasks that carry rows."""
    found: defaultdict[tuple[str, int], int] = defaultdict(int)
    for kind in UP_DOWN[phase]:
        for task in np.flatnonzero((graph.kind == kind) & (graph.payload_bytes > 0)).tolist():
            resource = int(graph.resource[task])
            owner = int(graph.resources.owner[resource])
            found[graph.resources.groups[resource], owner] += int(graph.wire_bytes[task])
    return dict(found)


def row_on_the_wire(scheme: str, layer: LayerWork) -> dict[str, int]:
    """Wire bytes of one row each way, packet by packet."""
    k = layer.expert_ids.shape[1]
    out, back = row_bytes(layer)["dispatch"], row_bytes(layer)["combine"]
    value = back // layer.shape.hidden
    values = layer.shape.hidden * layer.precision.dispatch_value_bytes
    write, answer = write_packets, response_packets
    return {
        # With each row: the source index, and expert ids (8 B) and weights (4 B) of its slots.
        "deepep": {"dispatch": write(out + 4 + 12 * k), "combine": write(back + 4 + 4 * k)},
        # Rows are padded to 2048 values; on the way out with 16 bytes for the source index.
        "deepep-ll": {
            "dispatch": write(-(-out * 2048 // layer.shape.hidden) + 16),
            "combine": write(-(-back * 2048 // layer.shape.hidden)),
        },
        # As those, in BF16.
        "nccl-ep": {
            "dispatch": write(-(-out * 2048 // layer.shape.hidden) + 16),
            "combine": write(-(-back * 2048 // layer.shape.hidden)),
        },
        # Rows are padded to 768 values, with scales of 128 each; with them ids, weights, source and
        # places of four bytes, in steps of 32.
        "deepep-v2": {
            "dispatch": write((768 + 32 if out < 2 * layer.shape.hidden else 2 * 768) + -(-4 * (3 * k + 1) // 32) * 32),
            "combine": write(value * 768),
        },
        # Rows are padded to 1024 values; with them the gate weights of all experts.
        "hybrid-ep": {
            "dispatch": write((1024 + 32 if out < 2 * layer.shape.hidden else 2 * 1024) + 4 * layer.num_experts),
            "combine": answer(value * 1024),
        },
        # Ids and weights are messages of their own.
        "trtllm-alltoall": {"dispatch": write(out), "combine": answer(back)},
        # With the gate weights of a node's experts alone.
        "nccl-ep-ht": {
            "dispatch": write(2 * 1024 + 4 * -(-layer.num_experts // 4) * 4),
            "combine": answer(value * 1024),
        },
        # Ids and weights are gathered apart.
        "nvls": {"dispatch": write(out), "combine": answer(back)},
        # Rows are loaded on the way out; on the way back an eighth of the columns is stored at a
        # time: 88, and 84 at the end.
        "flux": {"dispatch": answer(out), "combine": 7 * write(88 * value) + write(84 * value)},
        "ccfuser": {"dispatch": answer(out), "combine": write(back)},
        # Records of the experts are messages of their own.
        "flashinfer-push": {"dispatch": write(out), "combine": write(back)},
        # Scales are loaded apart. 256 columns of two blocks, or a block's 128.
        "megamoe": {
            "dispatch": answer(values) + answer(out - values),
            "combine": 2 * write(256 * value) + write(188 * value),
        },
        "megamoe-hopper": {
            "dispatch": answer(values) + answer(out - values),
            "combine": 5 * write(128 * value) + write(60 * value),
        },
        # Or 512 columns.
        "comet": {"dispatch": answer(out), "combine": write(512 * value) + write(188 * value)},
        # Tiles of 64 columns come back.
        "flashdmoe": {
            "dispatch": write(out),
            "combine": back // value // 64 * write(64 * value) + write(back % (64 * value)),
        },
        "dysharp-basic": {"dispatch": write(out, extra_flits=1), "combine": answer(back)},
        "dysharp-fusion-only": {"dispatch": write(out), "combine": answer(back)},
        "dysharp-comet": {"dispatch": write(out, extra_flits=1), "combine": answer(back)},
        "dysharp": {"dispatch": write(out, extra_flits=1), "combine": answer(back)},
        # Behind a row the address it shall go back to.
        "moe-hub": {"dispatch": write(out + 8), "combine": write(back)},
    }[scheme]


NO_MESSAGE_A_ROW = (
    "ideal",
    "nccl-alltoall",
    "megatron",
    "megatron-allgather",
    "tutel",
    "fastermoe",
    "pangu",
)


@every("precision", ["bf16", "fp8", "fp32"])
@every(
    "scheme",
    [name for name in SCHEMES if name not in NO_MESSAGE_A_ROW],
)
def test_rows_on_the_wire_packet_by_packet(scheme: str, precision: str, system_for: SystemFor) -> None:
    topk = 4 if scheme == "trtllm-alltoall" else 3  # which has no kernel for three
    layer = small_layers.work(
        small_layers.draw(30, 8, topk, seed=2),
        4,
        8,
        precision=precision,
        shape=ExpertShape(**WIRE_LAYER),
    )
    if SCHEMES[scheme].refuses(layer):
        return
    # Gate weights make rows of DySHARP's that differ.
    options = {"gate_weights": "free"} if scheme.startswith("dysharp") else {}
    graph, _, _ = build_layer(layer, system_for(4), SCHEMES[scheme].with_options(options))
    rows = traffic_oracle.port_rows(small_layers.routing_of(layer), SCHEMES[scheme].traffic)
    each = row_on_the_wire(scheme, layer)
    for phase in UP_DOWN:
        assert wire_by_port(graph, phase) == {port: count * each[phase] for port, count in rows[phase].items()}


@every(("precision", "twice"), [("fp8", True), ("bf16", True), ("fp32", False)])
def test_nccl_sends_what_a_pair_exchanges_as_one_buffer(precision: str, twice: bool, system_for: SystemFor) -> None:
    """Protocol LL has a flag for every 4 bytes up to 16 KiB; rows share packets."""
    ids = np.full((6, 1), 1, np.int32)  # six rows of 700 values: 16,800 bytes in FP32
    layer = small_layers.work(ids, 2, 2, tokens_of_rank=[6, 0], precision=precision, shape=ExpertShape(**WIRE_LAYER))
    graph, _, _ = build_layer(layer, system_for(2), SCHEMES["nccl-alltoall"])
    for phase, (source, target) in {"dispatch": (0, 1), "combine": (1, 0)}.items():
        nbytes = 6 * row_bytes(layer)[phase]
        assert (nbytes <= 16384) == twice
        wire = write_packets(2 * nbytes if twice else nbytes)
        assert wire_by_port(graph, phase) == {("uplink", source): wire, ("downlink", target): wire}
