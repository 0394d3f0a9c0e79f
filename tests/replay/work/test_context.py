"""Queries, keys and pairs of a batch, counted by hand."""

from __future__ import annotations

import dataclasses

import numpy as np

from replay.model.work.batch import form_batch
from replay.model.work.context import Context


def test_in_decode_every_token_reads_its_own_cache(recorded) -> None:
    trace = recorded([5, 3, 8, 4])  # decode rows, positions from 0
    batch = form_batch(trace, num_ranks=2, tokens_per_rank=2, phase="decode")
    counted = Context.of(trace, batch, (64, 64))
    reach = (trace.tokens.position[batch.rows].astype(int) + 1).reshape(2, 2).sum(axis=1)
    assert counted.tokens.tolist() == [2, 2]
    assert counted.positions.tolist() == counted.pairs.tolist() == reach.tolist()


def test_in_prefill_a_sequence_is_read_once_and_whole_tiles_are_computed(recorded) -> None:
    trace = recorded([10, 9, 3], prompts=[10, 9, 3])
    batch = form_batch(trace, num_ranks=2, tokens_per_rank=9, phase="prefill")
    # Rank 0 takes 9 of the 10 tokens of the first request, rank 1 all of the second.
    counted = Context.of(trace, batch, (4, 3))
    assert counted.tokens.tolist() == [9, 9]
    assert counted.positions.tolist() == [9, 9]
    # Queries 0-3 reach 4 keys, two tiles of three; 4-7 reach 8, three tiles; the last one 9.
    assert counted.pairs.tolist() == [4 * (6 + 9 + 9)] * 2
    assert np.asarray(counted.blocks).tolist() == [3, 3]
    assert np.asarray(counted.longest).tolist() == [4 * 9, 4 * 9]


def test_tokens_behind_a_cached_prefix_attend_to_it(recorded) -> None:
    trace = recorded([10, 9, 3], prompts=[10, 9, 3])
    late = dataclasses.replace(trace.tokens, position=trace.tokens.position + np.uint32(100))
    trace = dataclasses.replace(trace, tokens=late)
    batch = form_batch(trace, num_ranks=2, tokens_per_rank=9, phase="prefill")
    counted = Context.of(trace, batch, (4, 3))
    assert counted.positions.tolist() == [109, 109]
    assert counted.pairs.tolist() == [4 * (105 + 108 + 111)] * 2


def test_sequences_of_one_rank_do_not_share_tiles(recorded) -> None:
    trace = recorded([2, 3, 2], prompts=[2, 3, 2])
    batch = form_batch(trace, num_ranks=1, tokens_per_rank=7, phase="prefill")
    counted = Context.of(trace, batch, (4, 4))
    assert counted.positions.tolist() == [7]
    assert counted.pairs.tolist() == [3 * 4 * 4]
    scores = counted.scores(heads=5)
    assert [int(n[0]) for n in (scores.pairs, scores.blocks, scores.longest)] == [5 * 48, 5 * 3, 16]


def test_a_rank_without_tokens_attends_to_nothing(recorded) -> None:
    trace = recorded([4, 4], prompts=[4, 4])
    batch = form_batch(trace, num_ranks=2, tokens_per_rank=4, phase="prefill")
    first = batch.source_rank == 0
    only = dataclasses.replace(batch, rows=batch.rows[first], source_rank=batch.source_rank[first])
    counted = Context.of(trace, only, (4, 4))
    assert counted.tokens.tolist() == [4, 0] and counted.positions.tolist() == [4, 0]
    assert counted.pairs.tolist() == [16, 0]
    assert np.asarray(counted.longest).tolist() == [16, 0]
    assert counted[:1].pairs.tolist() == [16] and np.asarray(counted[1:].blocks).tolist() == [0]
