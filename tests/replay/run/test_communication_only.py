"""Replays of the communication alone, as users ask for them."""

from __future__ import annotations

import pytest

import replay
from replay.errors import UserError
from replay.experiments.layer.spec import RunSpec
from replay.experiments.layer.tables.notes import heading
from replay.experiments.layer.tables.times import span_text


@pytest.fixture(scope="module")
def trace(synthetic):
    return synthetic(ranks=4, tokens_per_rank=64)


def test_layers_are_replayed_by_themselves_and_say_what_they_are(trace) -> None:
    alone = replay.run(trace, scheme="deepep", communication_only=True)
    assert alone.chain is None and len(alone.layers) == trace.num_layers > 1
    assert heading(alone).splitlines()[0] == ("Communication alone: dispatch and combine, without experts")
    assert span_text(alone) == f"of the communication alone, per layer (mean of {trace.num_layers})"
    whole = replay.run(trace, scheme="deepep", barrier=True)
    assert alone.totals.makespan_us < whole.totals.makespan_us
    assert alone.totals.uplink_payload_bytes == whole.totals.uplink_payload_bytes
    assert "Communication alone" not in heading(whole)


def test_it_comes_back_from_json_as_what_it_is(trace) -> None:
    result = replay.run(trace, scheme="megamoe", layer=0, communication_only=True)
    again = type(result).model_validate_json(result.model_dump_json(by_alias=True))
    assert again.spec == result.spec and again.spec.communication_only
    assert replay.run(trace, result.spec).run_id == result.run_id


def test_splits_are_those_of_the_whole_layer(trace) -> None:
    whole, alone = (
        replay.run(trace, scheme="comet", layer=0, stack="bare", communication_only=only) for only in (False, True)
    )
    assert alone.scheme.options == whole.scheme.options
    assert alone.scheme.tuned == whole.scheme.tuned


def test_a_comparison_holds_the_ports_against_schemes(trace) -> None:
    compared = replay.compare(trace, ["ideal", "plain", "megamoe"], layer=0, communication_only=True)
    ideal, *others = (result.totals.makespan_us for result in compared.results)
    assert 0 < ideal < min(others)


def test_micro_batches_have_nothing_to_take_turns_at(trace) -> None:
    with pytest.raises(UserError, match="--interleave tbo does not go with --communication-only"):
        replay.run(trace, scheme="deepep-ll", layer=0, communication_only=True, interleave="tbo")


def test_it_is_one_graph_of_one_layer_only() -> None:
    assert RunSpec(communication_only=True, layer=1).makes_one_graph
    assert not RunSpec(communication_only=True).makes_one_graph
