"""Experts that several GPUs share, in served models: what they multiply, and who is refused."""

from __future__ import annotations

import numpy as np
import pytest

from replay.errors import UserError
from replay.experiments.serve.experiment import EXPERIMENT
from replay.experiments.serve.setup import ServingSetup
from replay.experiments.serve.spec import InferSpec
from replay.experiments.serve.tables import heading
from tracegen.models import load

MODEL = "olmoe-1b-7b"  # 64 experts of 1024, 8 a token
SMALL = InferSpec(
    model=MODEL,
    decode_gpus=4,
    requests=8,
    prompt=64,
    output=4,
    chunk=256,
    sample_layers=1,
    scheme="nvls",
)


def works(slices: int, tokens: int):
    """The MoE layer of each phase with so many tokens per GPU."""
    setup = ServingSetup.of(SMALL.changed(expert_tp=slices))
    return [setup.times["decode"].layers[phase]._prepare(tokens).links[0].work() for phase in ("prefill", "decode")]


@pytest.mark.parametrize("slices", [1, 2, 4])
def test_gpus_multiply_as_much_however_experts_are_cut(slices: int) -> None:
    """N times the rows, each 1 / N as wide inside, for as many bytes of weights."""
    shape, tokens = load(MODEL), 16
    for work in works(slices, tokens):
        rows = work.matrix("pairs").sum(axis=0)
        assert rows.sum() * work.shape.intermediate == 4 * tokens * 8 * shape.moe_intermediate
        assert (rows.reshape(-1, slices) == rows.reshape(-1, slices)[:, :1]).all()  # of a group
        each = np.bincount(work.placement.expert_rank)
        assert (each * work.shape.intermediate == 64 // 4 * shape.moe_intermediate).all()
        assert (work.whole_choices, work.whole_experts) == (8, 64)


def test_each_gpu_has_the_rows_of_all_tokens_where_all_share_the_experts() -> None:
    for work in works(4, 16):
        assert work.rows_of_expert.reshape(4, 64).tolist() == [work.rows_of_expert[:64].tolist()] * 4
        assert work.matrix("pairs").sum(axis=0).tolist() == [4 * 16 * 8] * 4
        assert work.matrix("copies").tolist() == [[16] * 4] * 4


def test_a_batch_has_slices_in_both_phases_and_whole_attention() -> None:
    whole, cut = (EXPERIMENT.run(SMALL, expert_tp=one) for one in (1, 4))
    for phase in ("prefill", "decode"):
        before, after = getattr(whole, phase), getattr(cut, phase)
        assert after.memory.weight_bytes == before.memory.weight_bytes
        for cause in ("attention", "dense", "head", "launches"):
            assert after.spent_us[cause] == before.spent_us[cause]
        assert after.spent_us["experts"] != before.spent_us["experts"]
    assert heading(cut) == f"{heading(whole)}, each expert over 4"


def test_only_slices_enter_the_identity() -> None:
    assert ServingSetup.of(SMALL.changed(expert_tp=1)).run_id == ServingSetup.of(SMALL).run_id
    assert ServingSetup.of(SMALL.changed(expert_tp=2)).run_id != ServingSetup.of(SMALL).run_id


def test_slices_that_cannot_be_are_refused_before_anything_is_replayed() -> None:
    with pytest.raises(UserError, match=r"--expert-tp 3: 4 ranks .* parts by 1, 2, 4$"):
        ServingSetup.of(SMALL.changed(expert_tp=3))
    with pytest.raises(UserError, match=r"--expert-tp 4: 2 ranks"):
        ServingSetup.of(SMALL.changed(expert_tp=4, prefill_gpus=2))
    with pytest.raises(UserError, match=r"--expert-tp 2 does not go with --placement eplb:72"):
        EXPERIMENT.run(SMALL, expert_tp=2, placement="eplb:72")
