"""SMs that schemes take by default: by a rule of the layer and the machine, or as a library ships them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from loops import every
from round_machine import ROUND

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.schemes.contract import layers as small_layers
from replay.schemes.options import OptionFacts, about
from replay.schemes.registry import COMPARED, EXAMPLES, TENSOR_EXAMPLES, TENSOR_SCHEMES, find

EVERY = COMPARED | EXAMPLES | TENSOR_SCHEMES | TENSOR_EXAMPLES
RULE = re.compile(r"\b0\b[^.]*\b(as many|as the|shares?|share all|are sent after)\b")
"""What help says of 0, where the layer or the machine decides."""


def numbers_of_sms(options: object) -> Iterator[OptionFacts]:
    """Options that are a number of SMs, or of what takes an SM each."""
    for option in about(options):
        if type(option.default) is int and re.search(r"(_sms|^channels|^blocks|^pushing_blocks)$", option.name):
            yield option


@every("name", list(EVERY))
def test_nobody_has_a_split_by_default_that_no_rule_gives_and_no_library_ships(name: str) -> None:
    for option in numbers_of_sms(EVERY[name].options):
        if option.default == 0:
            assert RULE.search(option.help), f"{option.name}: help says of 0 who decides"
        else:
            assert not re.match("assumed|chosen", option.source), f"{option.name}: {option.source}"


def test_options_that_speak_of_sms_are_numbers_of_them() -> None:
    found = {option.name for scheme in EVERY.values() for option in numbers_of_sms(scheme.options)}
    speak = {
        option.name
        for scheme in EVERY.values()
        for option in about(scheme.options)
        if type(option.default) is int and re.search(r"\bSMs?\b", option.help)
    }
    # How many blocks an SM holds, how much is launched or queued at a time: these leave nobody fewer SMs.
    others = {"blocks_per_sm", "resident_blocks", "ahead_blocks", "overlap_degree", "multimem_queue", "chunk_tokens"}
    assert speak - found == others


@every(("rate", "sms"), [(100.0, 10), (99.0, 11), (30.0, 25), (2000.0, 1)])
def test_stores_of_so_many_sms_fill_a_port(rate: float, sms: int) -> None:
    """A port carries 1000 GB/s. A quarter of 100 SMs is the most."""
    machine = Machine(hwmodel.load("dgx-h100", {**ROUND, "gpu.sm_push_GB_per_s": rate}), GraphBuilder(KIND_NAMES), 2)
    assert machine.storing_sms() == sms


@pytest.mark.parametrize(("system", "sms"), [("dgx-h100", 11), ("hgx-b200", 13)])
def test_direct_stores_have_as_many_as_fill_a_port(system: str, sms: int) -> None:
    loaded = hwmodel.load(system)
    assert find("sp-direct", "tp").communication_sms(Machine(loaded, GraphBuilder(KIND_NAMES), 8)) == sms
    graph = build_layer(small_layers.ALL["zipf 8 ranks"](), loaded, find("plain")).graph
    stores = np.flatnonzero((graph.kind == Kind.DISPATCH_SEND) | (graph.kind == Kind.COMBINE_SEND))
    assert (graph.resources.servers[graph.resource[stores]] == sms).all()
