"""Measures on a CPU what the Python around layers of a training framework takes its thread.

Usage: python scripts/measure_python.py    (a minute; needs PyTorch)

Steps as Megatron-LM does them (core_v0.17.1): hooks of modules and of weights
(distributed/distributed_data_parallel.py:389-450), checkpoints with random states
(tensor_parallel/random.py). Random states of a GPU are kept by its host: 16 bytes in a new tensor.
Prints microseconds, and the same on the host of replay/model/work/stacks/costs.toml, where
``add_`` in place takes 7.07. Least of many turns: other processes disturb.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

ADD_US = 7.07
TURNS, CALLS = 60, 40
FEW, MANY = 8, 32
Parts = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]

TRACKED = {str(name): torch.zeros(16, dtype=torch.uint8) for name in range(3)}


def states() -> Parts:
    return torch.get_rng_state(), torch.empty(16, dtype=torch.uint8), dict(TRACKED)


def set_states(cpu: torch.Tensor, _gpu: torch.Tensor, tracked: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(cpu)
    TRACKED.update(tracked)


@contextlib.contextmanager
def kept_states() -> Iterator[None]:
    now = states()
    try:
        yield
    finally:
        set_states(*now)


def detached(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(one.detach().requires_grad_(one.requires_grad) for one in tensors)


class Whole(torch.autograd.Function):  # type: ignore[misc]  # torch is not read for types
    """A checkpoint that keeps what goes in, and runs again in its backward pass."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        ctx.run, ctx.states = run, states()
        with torch.no_grad():
            out = run(*given)
        ctx.save_for_backward(*given)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with kept_states():
            set_states(*ctx.states)
            given = detached(ctx.saved_tensors)
            with torch.enable_grad():
                out = ctx.run(*given)
        torch.autograd.backward((out,), gradients)
        return (None, *(one.grad for one in given))


class OfOne(torch.autograd.Function):  # type: ignore[misc]  # torch is not read for types
    """A checkpoint whose result is made again by a hook of a later gradient."""

    @staticmethod
    def forward(ctx: Any, again: Again, *given: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            out = again.run(*given)
        ctx.save_for_backward(*detached(given))
        again.ctx = ctx
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        given = ctx.saved_tensors
        torch.autograd.backward(ctx.outs, gradients)
        return (None, *(one.grad for one in given))


class Again:
    def __init__(self, run: Callable[..., torch.Tensor], *given: torch.Tensor) -> None:
        self.run, self.states = run, states()
        self.ctx: Any = None
        self.out = OfOne.apply(self, *given)

    def drop(self, later: torch.Tensor) -> None:
        self.out.untyped_storage().resize_(0)
        later.register_hook(self.make)

    def make(self, _gradient: torch.Tensor) -> None:
        with kept_states():
            set_states(*self.states)
            with torch.enable_grad():
                out = self.run(*self.ctx.saved_tensors)
        with torch.no_grad():
            storage = self.out.untyped_storage()
            storage.resize_(out.untyped_storage().size())
            storage.copy_(out.untyped_storage())
        self.ctx.outs = (out,)


class Products(torch.autograd.Function):  # type: ignore[misc]  # torch is not read for types
    """Products with weights whose gradients they have added up: what is left is no gradient."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.left = [torch.empty(8) for _ in weights]
        return given * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (gradient, *(one.detach() for one in ctx.left))


class Bucket:
    reduces, gathered, waiting, is_last = True, True, None, False

    def ready(self, _weight: torch.Tensor) -> None:
        assert self.reduces

    def gather(self, *, skip: bool) -> None:
        assert self.reduces, skip
        assert self.gathered
        assert self.waiting is None


BUCKETS: dict[torch.Tensor, Bucket] = {}
LEAVES: list[Any] = []  # of autograd, which live as long as somebody knows them


def weights_of(count: int, kind: str) -> list[torch.nn.Parameter]:
    """Weights that are not trained, are trained, or have a hook beside."""
    made = []
    for _ in range(count):
        weight = torch.nn.Parameter(torch.zeros(8), requires_grad=kind != "kept")
        BUCKETS[weight] = Bucket()
        if kind == "hooked":
            leaf = weight.expand_as(weight).grad_fn.next_functions[0][0]

            def hook(*_: object, weight: torch.nn.Parameter = weight) -> None:
                if weight in BUCKETS:
                    assert weight.grad is not None
                    weight.grad = None
                    BUCKETS[weight].ready(weight)

            leaf.register_hook(hook)
            LEAVES.append(leaf)
        made.append(weight)
    return made


class Nothing(torch.nn.Module):  # type: ignore[misc]  # torch is not read for types
    def __init__(self, weights: int) -> None:
        super().__init__()
        for number, weight in enumerate(weights_of(weights, "trained")):
            self.register_parameter(f"weight{number}", weight)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given


def before(module: torch.nn.Module, *_: object) -> None:
    for weight in module.parameters(recurse=False):
        if weight in BUCKETS:
            assert weight.requires_grad
            bucket = BUCKETS[weight]
            bucket.gather(skip=bucket.is_last)


def each_us(call: Callable[[], object], calls: int = 10 * CALLS) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls * 1e6


def both_us(run: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float]:
    """Of a forward pass, and of the backward pass behind it."""
    source, forward, backward = torch.zeros(8, requires_grad=True), 0.0, 0.0
    for _ in range(CALLS):
        given = source * 1.0
        begun = time.perf_counter()
        out = run(given)
        forward += time.perf_counter() - begun
        loss = out.sum()
        begun = time.perf_counter()
        loss.backward()
        backward += time.perf_counter() - begun
        source.grad = None
    return forward / CALLS * 1e6, backward / CALLS * 1e6


def of_one(given: torch.Tensor) -> torch.Tensor:
    again = Again(torch.nn.functional.silu, given)
    later = again.out * 1.0
    again.drop(later)
    return later


def main() -> None:
    torch.set_num_threads(1)
    silu, x = torch.nn.functional.silu, torch.zeros(8)
    trained = torch.zeros(8, requires_grad=True)
    single: dict[str, Callable[[], Any]] = {"add_": lambda: x.add_(1.0), "silu": lambda: silu(trained)}
    for name, count, has_hook in (("bare", 0, 0), ("hook", 0, 1), ("one", 1, 1), ("17", 17, 1)):
        module = Nothing(count)
        if has_hook:
            module.register_forward_pre_hook(before)
        single[name] = partial(module.__call__, x)
    passes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "plain": lambda given: silu(given) * 1.0,
        "whole": lambda given: Whole.apply(silu, given) * 1.0,
        "of one": of_one,
    }
    for kind in ("kept", "trained", "hooked"):
        for count in (FEW, MANY):
            weights = weights_of(count, kind)

            def products(given: torch.Tensor, weights: list[Any] = weights) -> torch.Tensor:
                for weight in weights:
                    weight.grad = None
                return Products.apply(given, *weights)

            passes[f"{kind} {count}"] = products
    least: dict[str, list[float]] = {}
    for _ in range(TURNS):
        turn = {name: (each_us(call), 0.0) for name, call in single.items()}
        turn |= {name: both_us(run) for name, run in passes.items()}
        for name, pair in turn.items():
            least[name] = [min(both) for both in zip(pair, least.get(name, pair), strict=True)]

    def weight_us(kind: str) -> float:
        return (least[f"{kind} {MANY}"][1] - least[f"{kind} {FEW}"][1]) / (MANY - FEW)

    found = {
        "add_ in place": least["add_"][0],
        "hook of a module": least["hook"][0] - least["bare"][0],
        "weight looked up by it": (least["17"][0] - least["one"][0]) / 16,
        "weight left by autograd": weight_us("trained") - weight_us("kept"),
        "hook of a weight": weight_us("hooked") - weight_us("trained"),
    }
    for name in ("whole", "of one"):
        forward, backward = (a - b for a, b in zip(least[name], least["plain"], strict=True))
        found |= {f"checkpoint {name}, forward": forward}
        found |= {f"checkpoint {name}, backward": backward - least["silu"][0]}
    for name, us in found.items():
        print(f"{name:28} {us:7.2f} us {us * ADD_US / found['add_ in place']:7.1f}")


if __name__ == "__main__":
    main()
