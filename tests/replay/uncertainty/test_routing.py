"""Other routing of the same kind."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import replay
import tracegen
from replay.errors import UserError
from replay.studies.uncertainty import routing
from replay.studies.uncertainty.assess import assess


def test_what_was_generated_is_generated_anew(synthetic):
    trace = synthetic(ranks=4, tokens_per_rank=16)
    one, same, other = (routing.draw_routing(trace, seed, 7, 1) for seed in (0, 0, 1))
    assert one.num_layers == 1 and one.tokens.rank.tolist() == trace.tokens.rank.tolist()
    assert np.array_equal(one.expert_ids, same.expert_ids)
    assert not np.array_equal(one.expert_ids, other.expert_ids)
    assert not np.array_equal(one.expert_ids, trace.expert_ids[:1])
    ours, theirs = (one.info.provenance["parameters"] for one in (trace, one))
    assert {key for key in ours if ours[key] != theirs[key]} <= {"seed", "layers"}


def test_recorded_requests_take_the_choices_of_recorded_requests(recorded):
    """In their order: what lies behind one another in a request was recorded so."""
    trace = recorded([5, 9, 2, 7], prompts=[2, 4, 1, 3])
    drawn = routing.draw_routing(trace, 0, 3, 1)
    kept = ("step", "request", "position", "phase")
    for column in kept:
        assert np.array_equal(getattr(drawn.tokens, column), getattr(trace.tokens, column))
    ids_of, chosen = trace.expert_ids[0], set()
    for phase in (0, 1):
        is_in = trace.tokens.phase == phase
        own = [ids_of[(trace.tokens.request == r) & is_in].tolist() for r in range(10, 14)]
        for request in range(10, 14):
            rows = (trace.tokens.request == request) & is_in
            ids = drawn.expert_ids[0, rows].tolist()
            source = [k for k, of in enumerate(own) if (of * len(ids))[: len(ids)] == ids]
            assert source, "no request has these choices"
            chosen.add((phase, source[0]))
    assert len(chosen) > 2


def test_one_request_gives_no_other_routing(recorded):
    trace = recorded([40])
    assert "one request" in routing.why_not(trace)
    assert routing.why_not(recorded([20, 20])) == ""


def test_it_is_said_where_routing_is_asked_for_and_not_drawn(synthetic):
    trace = synthetic(ranks=4, tokens_per_rank=16)
    tokens = dataclasses.replace(trace.tokens, request=np.zeros_like(trace.tokens.request))
    info = dataclasses.replace(trace.info, kind="captured", provenance={})
    alone = dataclasses.replace(trace, tokens=tokens, info=info, requests=tracegen.RequestTable(), stored_content_id="")
    compared = replay.compare(alone, ["deepep"], layer=0)
    found = assess(compared, alone, draws=2).uncertainty
    assert found.drawn == ["hardware", "software", "model"]
    assert "one request" in found.notes[0]
    with pytest.raises(UserError, match="one request"):
        assess(compared, alone, draws=2, of=["routing"])


@pytest.mark.parametrize("of", [["routing"], ["hardware"]])
def test_bands_of_routing_alone_and_of_hardware_alone(synthetic, of):
    trace = synthetic(ranks=4, tokens_per_rank=16)
    compared = replay.compare(trace, ["deepep"], layer=0)
    found = assess(compared, trace, draws=3, of=of).uncertainty
    assert found.drawn == of and len(set(found.bands[0].times_us)) == 3
