"""Ratios of traffic that published work states for uniform routing over 32 GPUs.

Sources: DySHARP (arXiv 2605.05607) sections II-C and VI: 340 % useless traffic of the NVLS
workaround for 256 experts and top-8, nearly half of DeepEP's traffic saved, no gain without
overlap; the closed form of the number of distinct GPUs is that of DeepEP's own buffer sizing.
"""

from __future__ import annotations

import json
from functools import cache
from math import comb

import numpy as np
import pytest
from loops import every

import hwmodel
import replay
import tracegen
from replay.chains.layer import build_layer
from replay.experiments.layer.tables.wires import payload_tables
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.graph_facts import port_bytes

RANKS, EXPERTS = 32, 256


@cache
def uniform(k: int) -> LayerWork:
    ids = small_layers.draw(RANKS * 64, EXPERTS, k, seed=k)
    return small_layers.work(ids, RANKS, EXPERTS, shape=ExpertShape(hidden=64, intermediate=16))


@cache
def bytes_of(scheme: str, k: int) -> dict[tuple[str, str], np.ndarray]:
    """(phase, direction) -> payload of each GPU."""
    graph, _, _ = build_layer(uniform(k), hwmodel.load("gh200-nvl32"), SCHEMES[scheme])
    found = port_bytes(graph)
    return {
        (phase, direction): np.array([found[phase][direction, gpu] for gpu in range(RANKS)])
        for phase in found
        for direction in ("uplink", "downlink")
    }


def total(scheme: str, k: int) -> int:
    return int(sum(ports.sum() for ports in bytes_of(scheme, k).values()))


def distinct_remote(k: int) -> float:
    """R: expected distinct remote GPUs of a token."""
    per_gpu = EXPERTS // RANKS
    return (RANKS - 1) * (1 - comb(EXPERTS - per_gpu, k) / comb(EXPERTS, k))


@every("k", [8, 16, 32])
def test_routing_reaches_the_expected_number_of_gpus(k: int) -> None:
    mean = uniform(k).summary()["mean_distinct_remote_ranks"]
    assert mean == pytest.approx(distinct_remote(k), rel=0.01)


@pytest.mark.extended
def test_nvls_receives_3_40_times_what_is_needed_on_top_of_it() -> None:
    """With own copies or without: of the N copies of a token D are needed, of N - 1 others R."""
    received = bytes_of("nvls", 8)["dispatch", "downlink"].sum()
    remote = bytes_of("deepep", 8)["dispatch", "downlink"].sum()
    row = received / (RANKS * len(uniform(8).expert_ids))
    own = row * (uniform(8).matrix("copies").trace())
    assert (received - remote - own) / (remote + own) == pytest.approx(3.40, abs=0.05)
    scheme = SCHEMES["nvls"].with_options({"loopback": False})
    graph, _, _ = build_layer(uniform(8), hwmodel.load("gh200-nvl32"), scheme)
    others = sum(port_bytes(graph)["dispatch"]["downlink", gpu] for gpu in range(RANKS))
    assert others == received * (RANKS - 1) // RANKS
    assert (others - remote) / remote == pytest.approx(3.40, abs=0.05)


@pytest.mark.extended
@every(("k", "share"), [(8, 0.571), (16, 0.540), (32, 0.524)])
def test_dysharp_moves_little_more_than_half_of_deepeps_payload(k: int, share: float) -> None:
    r = distinct_remote(k)
    assert (2 * r + 2) / (4 * r) == pytest.approx(share, abs=0.001)
    assert total("dysharp", k) / total("deepep", k) == pytest.approx(share, abs=0.01)


@every("k", [8, 16, 32])
def test_dysharp_basic_moves_less_yet_its_busiest_direction_carries_as_much(k: int) -> None:
    basic, deepep = bytes_of("dysharp-basic", k), bytes_of("deepep", k)
    assert total("dysharp-basic", k) < 0.6 * total("deepep", k)
    for busiest in (("dispatch", "downlink"), ("combine", "uplink")):
        assert (basic[busiest] == deepep[busiest]).all()
        phase = busiest[0]
        assert basic[busiest].max() == max(basic[phase, way].max() for way in ("uplink", "downlink"))


@every("k", [8, 16, 32])
def test_full_dysharps_directions_carry_r_plus_1_of_2r(k: int) -> None:
    full, deepep = bytes_of("dysharp", k), bytes_of("deepep", k)
    layer = uniform(k)
    r = layer.summary()["mean_distinct_remote_ranks"]
    assert (np.bincount(layer.copy_token[layer.copy_is_remote], minlength=layer.num_tokens) > 0).all()
    for way in ("uplink", "downlink"):
        both = (full["dispatch", way] + full["combine", way]).mean()
        apart = deepep["dispatch", "downlink"].mean() + deepep["combine", "uplink"].mean()
        assert both / apart == pytest.approx((r + 1) / (2 * r), rel=1e-12)


# ---- the same in what people see ----------------------------------------------------------------


@cache
def compared() -> replay.Comparison:
    shape = tracegen.models.load("deepseek-v3")
    trace = tracegen.generate.generate("uniform", shape, ranks=RANKS, tokens_per_rank=32, layers=1)
    return replay.compare(
        trace,
        ["deepep", "nvls", "dysharp-basic", "dysharp"],
        system=hwmodel.load("gh200-nvl32"),
        precision="bf16",
    )


@pytest.mark.extended
def test_json_shows_the_ports_and_the_bounds_they_imply() -> None:
    results = {row["scheme"]["name"]: row for row in json.loads(compared().to_json())["results"]}
    layers = {name: row["layers"][0]["measures"] for name, row in results.items()}
    payload = {name: layer["payload_bytes"] for name, layer in layers.items()}
    for phase, way in (("dispatch", "downlink"), ("combine", "uplink")):
        assert payload["dysharp-basic"][phase][way] == payload["deepep"][phase][way]
        busiest = layers["dysharp-basic"]["busiest_port"][phase]
        assert busiest["direction"] == way
        assert busiest["payload_bytes"] == max(payload["deepep"][phase][way])
    # Basic keeps its phases apart, one busiest port after the other; in full they share the wire.
    basic, full = layers["dysharp-basic"]["bounds_us"], layers["dysharp"]["bounds_us"]
    busy = sum(layers["dysharp-basic"]["busiest_port"][phase]["busy_us"] for phase in payload["deepep"])
    assert 0.95 * busy < basic["phases_us"] <= busy  # acknowledgements are not awaited
    assert full["phases_us"] is None
    assert full["port_us"] == layers["dysharp"]["busiest_port"]["both"]["busy_us"]
    assert full["port_us"] < 0.75 * basic["phases_us"]
    for way in ("uplink", "downlink"):
        both = np.add(payload["dysharp"]["dispatch"][way], payload["dysharp"]["combine"][way])
        apart = np.add(payload["deepep"]["dispatch"]["downlink"], payload["deepep"]["combine"]["uplink"])
        r = results["deepep"]["layers"][0]["routing"]["mean_distinct_remote_ranks"]
        assert both.mean() / apart.mean() == pytest.approx((r + 1) / (2 * r), rel=1e-6)


def test_table_shows_the_ports_and_the_bounds_they_imply() -> None:
    ports, busiest = payload_tables(compared().results)
    # up mean, up max, down mean, down max, dispatch, combine, both, wire bound, phases
    rows = {row[0].rstrip("*"): [*row[1:], *most[1:]] for row, most in zip(ports.rows, busiest.rows, strict=True)}
    assert set(rows) == {"deepep", "nvls", "dysharp-basic", "dysharp"}
    assert rows["dysharp-basic"][4:6] == rows["deepep"][4:6]
    assert rows["dysharp-basic"][0] < 0.6 * rows["deepep"][0]
    assert (rows["dysharp-basic"][-1], rows["dysharp"][-1]) == ("apart", "shared")
    assert rows["dysharp"][6] < 0.65 * (rows["deepep"][4] + rows["deepep"][5])
    layer = compared()["dysharp"].layers[0]
    assert rows["dysharp"][7] == layer.measures.bounds_us.port_us
    layer = compared()["dysharp-basic"].layers[0]
    assert rows["dysharp-basic"][7] == layer.measures.bounds_us.phases_us
