"""A cache is known by what it is: other names, other places, and what its owner does with it."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import needs_torch  # noqa: F401  # before all that imports torch
import pytest
import tiny_families
import torch
from replay_proof import given_back
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    StaticCache,
)

import tracegen

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
NEXT = torch.tensor([[13], [14]])
PREFILL, DECODE = 0, 1


def rows_of(path: Path) -> list[tuple[int, int, int]]:
    """Request, position and phase of each row."""
    table = tracegen.load(path).tokens
    columns = (table.request, table.position, table.phase)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def requests(*ranges: range, prompt: int = 4) -> list[tuple[int, int, int]]:
    """Rows of requests that have these positions, those from ``prompt`` on decoded."""
    return [
        (request, position, PREFILL if position < prompt else DECODE)
        for request, positions in enumerate(ranges)
        for position in positions
    ]


FOLLOWED = requests(range(6), range(6))
"""Two prompts of four tokens, and two steps."""


@dataclasses.dataclass
class Result:
    """Output of a model with names of its own."""

    scores: Any
    inner: Any


class Memory:
    """A cache with a class of its own, which does not say how long it is."""

    layers: Any = ()

    def cache(self) -> Any:
        return DynamicCache(self.layers or None)

    def fill(self, cache: Any) -> None:
        self.layers = [(layer.keys, layer.values) for layer in cache.layers]


class Holder:
    """An object with a cache in it."""

    inner: Any = None

    def cache(self) -> Any:
        return self.inner or DynamicCache()

    def fill(self, cache: Any) -> None:
        self.inner = cache


OUTPUTS: dict[str, Callable[[Any, Any], Any]] = {
    "a tuple": lambda logits, memory: (logits, memory),
    "a dictionary": lambda logits, memory: {"logits": logits, "state": {"memory": memory}},
    "a data class": lambda logits, memory: Result(logits, (memory,)),
    "an object": lambda logits, memory: SimpleNamespace(logits=logits, memory=memory),
    "nothing": lambda logits, memory: logits,
}


def renamed(output: Callable[[Any, Any], Any], wrap: Any) -> Any:
    """A model that takes its cache second, as ``memory``, and returns it in a way of its own."""
    model = tiny_families.tiny_model("mixtral")
    inner, name = type(model).forward, next(iter(given_back(model, None)))

    def forward(self: Any, input_ids: Any, memory: Any = None) -> Any:
        memory = wrap() if memory is None else memory
        cache = memory if wrap is DynamicCache else memory.cache()
        logits = inner(self, input_ids=input_ids, **{name: cache}).logits
        if memory is not cache:
            memory.fill(cache)
        return output(logits, memory)

    model.__class__ = type("Renamed", (type(model),), {"forward": forward})
    return model


def memory_in(result: Any) -> Any:
    """The cache in one of :data:`OUTPUTS`."""
    if isinstance(result, tuple):
        return result[1]
    if isinstance(result, dict):
        return result["state"]["memory"]
    return result.inner[0] if isinstance(result, Result) else result.memory


@pytest.mark.extended
@pytest.mark.parametrize("wrap", [DynamicCache, Memory, Holder])
def test_a_cache_is_followed_wherever_it_is(tmp_path: Path, wrap: Any) -> None:
    found = {}
    for name, output in OUTPUTS.items():
        model = renamed(output, wrap)
        cache = wrap() if name == "nothing" else None
        with tracegen.capture(model, tmp_path / f"{name}.h5"), torch.no_grad():
            done = model(IDS) if cache is None else model(IDS, cache)
            for at in range(2):
                memory = memory_in(done) if cache is None else cache
                done = model(NEXT, memory) if at else model(input_ids=NEXT, memory=memory)
        found[name] = rows_of(tmp_path / f"{name}.h5")
    assert {name: rows for name, rows in found.items() if rows != FOLLOWED} == {}


def test_a_cache_is_followed_under_the_name_of_another_version(model: Any, tmp_path: Path) -> None:
    old = given_back(model, None).keys() - {"past_key_values"}
    with tracegen.capture(model, tmp_path / "a.h5"), torch.inference_mode():
        cache = StaticCache(config=model.config, max_cache_len=8)
        model(IDS, **given_back(model, cache))
        for _ in range(2):
            if old:
                with pytest.warns(FutureWarning, match="past_key_values"):
                    model(NEXT, past_key_values=cache)
            else:
                model(NEXT, past_key_values=cache)
    assert rows_of(tmp_path / "a.h5") == FOLLOWED


CHANGES: dict[str, tuple[Callable[[Any], Any], int, int]] = {
    "reordered": (lambda cache: cache.reorder_cache(torch.tensor([1, 0])), 4, 2),
    "repeated": (lambda cache: cache.batch_repeat_interleave(2), 4, 4),
    "selected from": (lambda cache: cache.batch_select_indices(torch.tensor([1, 1])), 4, 2),
    "copied": (copy.deepcopy, 4, 2),
    "changed in place": (
        lambda cache: [layer.keys.mul_(2) for layer in cache.layers] and None,
        4,
        2,
    ),
}
"""What is done to a cache that holds four columns: returns another cache or None; columns that
it holds then, and sequences."""


def test_a_cache_that_somebody_changed_begins_other_requests(model: Any, tmp_path: Path) -> None:
    found, wanted = {}, {}
    for name, (change, start, size) in CHANGES.items():
        with tracegen.capture(model, tmp_path / f"{name}.h5"), torch.no_grad():
            cache = DynamicCache()
            model(IDS, **given_back(model, cache))
            cache = change(cache) or cache
            for _ in range(2):
                model(NEXT[:1].repeat(size, 1), **given_back(model, cache))
        found[name] = rows_of(tmp_path / f"{name}.h5")
        wanted[name] = requests(range(4), range(4), *[range(start, start + 2)] * size)
    assert found == wanted


def test_a_copy_and_its_original_are_told_apart(model: Any, tmp_path: Path) -> None:
    with tracegen.capture(model, tmp_path / "a.h5"), torch.no_grad():
        cache = model(IDS, use_cache=True).past_key_values
        other = copy.deepcopy(cache)
        for _ in range(2):
            model(NEXT, **given_back(model, cache))
            model(NEXT, **given_back(model, other))
    after = [range(4, 6)] * 2
    assert rows_of(tmp_path / "a.h5") == requests(range(6), range(6), *after)


def test_what_cannot_be_told_apart_is_refused_with_the_versions_tried(model: Any, tmp_path: Path) -> None:
    def two_caches() -> None:
        caches = [DynamicCache(), DynamicCache()]
        model(IDS, **given_back(model, caches[0]))
        model(NEXT, **given_back(model, caches[0]), another=caches[1])

    def of_tuples() -> None:
        layer = (torch.zeros(2, 2, 4, 8), torch.zeros(2, 2, 4, 8))
        model(NEXT, **given_back(model, (layer,) * 3))

    def within() -> None:
        def again(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            model.generate(tokens, max_new_tokens=1)
            return scores

        model.generate(IDS, max_new_tokens=2, logits_processor=LogitsProcessorList([again]))

    def beams() -> None:
        model.generate(IDS, GenerationConfig(num_beams=2, max_new_tokens=2))

    def paged() -> None:
        model.generate(IDS, max_new_tokens=2, cache_implementation="paged")

    def healed() -> None:
        model.generate(IDS, max_new_tokens=2, token_healing=True)

    cases = [
        (two_caches, r"several caches.*tried with transformers 5\.0"),
        (of_tuples, r"is a tuple, which does not say whose it is.*tried with"),
        (within, "generate was called within generate"),
        (beams, "num_beams=2"),
        (paged, "generate_batch packs sequences"),
        (healed, "token_healing is set"),
        (lambda: model.init_continuous_batching(), "init_continuous_batching packs"),
    ]
    for number, (run, reason) in enumerate(cases):
        with (
            pytest.raises(tracegen.UserError, match=reason),
            tracegen.capture(model, tmp_path / f"{number}.h5"),
            torch.no_grad(),
        ):
            run()
    odd = renamed(OUTPUTS["a tuple"], Memory)
    filled = memory_in(odd(IDS))
    with (
        pytest.raises(tracegen.UserError, match=r"the Memory that .* does not say how many"),
        tracegen.capture(odd, tmp_path / "odd.h5"),
    ):
        odd(NEXT, filled)


def test_a_generation_goes_on_from_a_cache(model: Any, tmp_path: Path) -> None:
    """The prompt is given whole, or only what is new: more of it than the cache holds."""
    new = torch.randint(3, 60, (2, 6), generator=torch.Generator().manual_seed(0))
    ids, passes = torch.cat([IDS, new], dim=1), []

    def count(_module: Any, _args: Any, kwargs: Any) -> None:
        passes.append(kwargs["input_ids"].shape[1])

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    for given in (ids, new):
        with tracegen.capture(model, tmp_path / f"{given.shape[1]}.h5"), torch.no_grad():
            cache = DynamicCache()
            model(input_ids=IDS, **given_back(model, cache))
            passes.clear()
            model.generate(
                input_ids=given,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=3,
                min_new_tokens=3,
                **given_back(model, cache),
            )
        # transformers before 5.3 cuts off as much as the cache holds, of new tokens too.
        new_columns = passes[0]
        assert new_columns in (6, 2)
        later = range(4, 4 + new_columns + 2)
        wanted = requests(range(4), range(4), later, later, prompt=4 + new_columns)
        assert rows_of(tmp_path / f"{given.shape[1]}.h5") == wanted
    handle.remove()


def test_a_sequence_ends_as_the_configuration_in_force_says(model: Any, tmp_path: Path) -> None:
    """By generate's own arguments, else by a configuration that is given, else by the model's."""
    free = model.generate(IDS, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    stop = int(free[0, 5])
    was, model.generation_config.eos_token_id = model.generation_config.eos_token_id, stop
    short = GenerationConfig(max_new_tokens=6)
    try:
        for name, arguments in {
            "the model's": {"generation_config": short},
            "none": {"max_new_tokens": 6, "eos_token_id": None},
        }.items():
            with tracegen.capture(model, tmp_path / f"{name}.h5"):
                done = model.generate(IDS, pad_token_id=tiny_families.PAD, **arguments)
            rows = [row for row in rows_of(tmp_path / f"{name}.h5") if row[0] == 0]
            ended = name != "none"
            assert bool((done[0, 6:] == tiny_families.PAD).all()) == ended
            assert len(rows) == (5 if ended else 9), name
    finally:
        model.generation_config.eos_token_id = was
