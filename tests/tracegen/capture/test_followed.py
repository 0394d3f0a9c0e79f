"""Whose rows are whose: threads, caches, packed batches, a model that runs inside generate."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import needs_torch  # noqa: F401  # before all that imports torch
import numpy as np
import pytest
import tiny_families
import torch
from replay_proof import generate, given_back, prompts
from transformers import DataCollatorWithFlattening, LogitsProcessorList

import tracegen
from tracegen.capture import recover

TRAINING = 2
TEXTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16]]


def routing(trace: tracegen.RoutingTrace) -> dict[tuple[int, ...], list[Any]]:
    """Vocabulary entries of each request to its experts, (row, layer, slot), as lists."""
    table = trace.tokens
    assert table.token_id is not None
    found = {}
    for request in np.unique(table.request):
        rows = np.flatnonzero(table.request == request)
        assert table.position[rows].tolist() == list(range(rows.size))
        ids = trace.expert_ids[:, rows].transpose(1, 0, 2)
        found[tuple(table.token_id[rows].tolist())] = ids.tolist()
    return found


def one_by_one(model: Any, out: Path) -> dict[tuple[int, ...], list[Any]]:
    """Routing of each text in a pass of its own."""
    with tracegen.capture(model, out, token_ids=True), torch.no_grad():
        for text in TEXTS:
            model(input_ids=torch.tensor([text]), use_cache=False)
    return routing(tracegen.load(out))


def test_threads_on_one_model_are_kept_apart(model: Any, tmp_path: Path) -> None:
    """Each thread waits within its pass until the other is in its own."""
    alone = one_by_one(model, tmp_path / "alone.h5")
    meet = threading.Barrier(2)

    def wait(*_: Any) -> None:
        meet.wait(10)

    handle = model.model.layers[1].register_forward_pre_hook(wait)

    def run(text: list[int]) -> None:
        with torch.no_grad():
            model(input_ids=torch.tensor([text]), use_cache=False)

    try:
        with (
            tracegen.capture(model, tmp_path / "a.h5", token_ids=True),
            ThreadPoolExecutor(2) as pool,
        ):
            list(pool.map(run, TEXTS[:2]))
    finally:
        handle.remove()
    both = routing(tracegen.load(tmp_path / "a.h5"))
    assert both == {tuple(text): alone[tuple(text)] for text in TEXTS[:2]}


def test_threads_generate_at_a_time(model: Any, tmp_path: Path) -> None:
    with tracegen.capture(model, tmp_path / "alone.h5", token_ids=True):
        generate(model)
    with (
        tracegen.capture(model, tmp_path / "a.h5", token_ids=True),
        ThreadPoolExecutor(3) as pool,
    ):
        list(pool.map(lambda _: generate(model), range(6)))
    alone = routing(tracegen.load(tmp_path / "alone.h5"))
    trace = tracegen.load(tmp_path / "a.h5")
    assert routing(trace) == alone
    assert sorted(set(trace.tokens.request.tolist())) == list(range(18))
    assert trace.info.provenance["dropped"][0]["rows"] == 6 * 4


def test_a_pass_that_outlives_the_block_is_counted_as_dropped(model: Any, tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            leave.wait(10)

    handle = model.model.layers[1].register_forward_pre_hook(wait)
    late = threading.Thread(target=lambda: model(input_ids=torch.tensor([TEXTS[0]])))
    with tracegen.capture(model, tmp_path / "a.h5"):
        model(input_ids=torch.tensor([TEXTS[1]]))
        late.start()
        assert inside.wait(10)
    leave.set()
    late.join()
    handle.remove()
    trace = tracegen.load(tmp_path / "a.h5")
    assert trace.num_tokens == len(TEXTS[1])
    (dropped,) = trace.info.provenance["dropped"]
    assert dropped["rows"] == len(TEXTS[0])
    assert "had not ended" in dropped["why"]


def test_conversations_that_take_turns_are_told_apart_by_their_caches(model: Any, tmp_path: Path) -> None:
    with tracegen.capture(model, tmp_path / "a.h5", token_ids=True), torch.no_grad():
        done = [model(input_ids=torch.tensor([text]), use_cache=True) for text in TEXTS]
        for at in range(2):
            for text, one in zip(TEXTS, done, strict=True):
                next_one = torch.tensor([[text[at]]])
                model(input_ids=next_one, **given_back(model, one.past_key_values))
    trace = tracegen.load(tmp_path / "a.h5")
    assert set(routing(trace)) == {tuple(text + text[:2]) for text in TEXTS}
    assert trace.requests.prompt_len is not None
    assert trace.requests.prompt_len.tolist() == [len(text) for text in TEXTS]


def test_a_cache_that_was_emptied_begins_new_requests(model: Any, tmp_path: Path) -> None:
    with tracegen.capture(model, tmp_path / "a.h5"), torch.no_grad():
        cache = model(input_ids=torch.tensor([TEXTS[0]]), use_cache=True).past_key_values
        cache.reset()
        first = cache.get_seq_length()  # early versions of transformers keep as many zeros
        model(input_ids=torch.tensor([TEXTS[1]]), **given_back(model, cache))
    table = tracegen.load(tmp_path / "a.h5").tokens
    assert table.request.tolist() == [0] * len(TEXTS[0]) + [1] * len(TEXTS[1])
    assert table.position[len(TEXTS[0]) :].tolist() == [first + at for at in range(len(TEXTS[1]))]


def flattened(**options: bool) -> dict[str, torch.Tensor]:
    """What the collator of transformers makes of the texts: one row, no mask."""
    collate = DataCollatorWithFlattening(return_tensors="pt", **options)
    batch: dict[str, torch.Tensor] = collate([{"input_ids": text} for text in TEXTS])
    return batch


@pytest.mark.parametrize("options", [{}, {"return_flash_attn_kwargs": True}], ids=str)
def test_a_flattened_batch_is_taken_apart(model: Any, tmp_path: Path, options: dict[str, bool]) -> None:
    alone = one_by_one(model, tmp_path / "alone.h5")
    with tracegen.capture(model, tmp_path / "a.h5", token_ids=True), torch.no_grad():
        model(**flattened(**options), use_cache=False)
    trace = tracegen.load(tmp_path / "a.h5")
    assert routing(trace) == alone
    assert trace.num_steps == 1


def test_training_on_flattened_batches(tmp_path: Path) -> None:
    trained = tiny_families.tiny_model("mixtral").train()
    with tracegen.capture(trained, tmp_path / "a.h5", token_ids=True):
        for _ in range(2):
            trained(**flattened(), use_cache=False).loss.backward()
    trace = tracegen.load(tmp_path / "a.h5")
    assert set(trace.tokens.phase.tolist()) == {TRAINING}
    assert len(set(trace.tokens.request.tolist())) == 2 * len(TEXTS)


def changed(**changes: Callable[[dict[str, torch.Tensor]], Any]) -> dict[str, Any]:
    batch: dict[str, Any] = flattened()
    return batch | {name: change(batch) for name, change in changes.items()}


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (
            changed(attention_mask=lambda b: torch.ones_like(b["input_ids"])),
            "attention_mask calls one sequence",
        ),
        (changed(position_ids=lambda b: b["position_ids"] + 5), "begins at position 5"),
        (
            changed(cu_seq_lens_q=lambda _b: torch.tensor([0, 4, 12])),
            r"\[0, 4, 12\], position_ids begin again at \[0, 4, 7\] of 12",
        ),
        (
            changed(cu_seq_lens_q=lambda _b: torch.tensor([0, 4, 7, 12]), position_ids=lambda _b: None),
            "told apart by position_ids",
        ),
        (
            changed(
                attention_mask=lambda b: torch.tensor([[1] * 4 + [2] * 3 + [3] * 5]),
                position_ids=lambda _b: None,
            ),
            "other values than 0 and 1",
        ),
    ],
    ids=["mask", "later", "contradicted", "lengths only", "numbered mask"],
)
def test_a_packed_batch_that_cannot_be_taken_apart_is_refused(
    model: Any, tmp_path: Path, batch: dict[str, Any], reason: str
) -> None:
    with (
        pytest.raises(tracegen.UserError, match=reason),
        tracegen.capture(model, tmp_path / "a.h5"),
    ):
        model(**batch, use_cache=False)
    assert list(tmp_path.iterdir()) == []


def test_a_packed_batch_does_not_go_on_from_its_cache(model: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(tracegen.UserError, match="which of its sequences"),
        tracegen.capture(model, tmp_path / "a.h5"),
        torch.no_grad(),
    ):
        cache = model(**flattened(), use_cache=True).past_key_values
        model(input_ids=torch.tensor([[5]]), **given_back(model, cache))
    assert tracegen.load(recover([tmp_path / "a.h5.partial"])[0]).num_tokens == 12


@pytest.mark.parametrize("use_cache", [True, False])
def test_guidance_is_refused(model: Any, tmp_path: Path, use_cache: bool) -> None:
    ids, mask = prompts()
    with (
        pytest.raises(tracegen.UserError, match=r"guidance_scale=1\.5.*second time in every step"),
        tracegen.capture(model, tmp_path / "a.h5"),
    ):
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=3,
            guidance_scale=1.5,
            use_cache=use_cache,
        )


@pytest.mark.parametrize(("use_cache", "reason"), [(True, "on a second cache"), (False, "without a cache")])
def test_a_model_that_runs_again_inside_generate_is_refused(
    model: Any, tmp_path: Path, use_cache: bool, reason: str
) -> None:
    """As guidance does it, but by somebody's own hand."""
    ids, mask = prompts()

    def again(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        model(input_ids=tokens[:, -1:], use_cache=use_cache)
        return scores

    with (
        pytest.raises(tracegen.UserError, match=reason),
        tracegen.capture(model, tmp_path / "a.h5"),
    ):
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=1,
            use_cache=use_cache,
            logits_processor=LogitsProcessorList([again]),
        )
