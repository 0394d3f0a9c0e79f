"""Measures on a CPU what Python, pybind11 and PyTorch's dispatcher take around an extension's own work.

Usage: python scripts/extension_calls.py [TURNS]    (minutes; needs PyTorch, a C++ compiler and ninja)

Entries of `extension_calls.cpp` have signatures as wide as those of libraries that exchange rows, and wrappers here do
what theirs do: DeepEP's Buffer (deepseek-ai/DeepEP dd758ca, deep_ep/buffers/legacy.py) and what calls it in
Megatron-Core (core_v0.17.1, transformer/moe/fused_a2a.py). Each is timed in a row of its own kind, and among other
calls: all of them and operators of `autograd_operators.py` in a shuffled order, by a clock around each. Prints the
columns of replay/studies/validate/measurements/extension_calls.csv: the lowest tenth and the median of all turns (among
others of each of the call's places, of which the mean counts), in microseconds, less the clock.
"""

# mypy: ignore-errors

import contextlib
import random
import sys
import time
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from autograd_operators import more_operators, operators
from torch.utils.cpp_extension import load

CALLS, IN_A_ROW, PLACES = 20, 32, 6
SEED = 7
here = Path(__file__).parent
own = load("extension_calls_host", [str(here / "extension_calls.cpp")], extra_cflags=["-O2"])


def is_checked():
    assert not (torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory)


class Event:
    def __init__(self, event=None, kept=None):
        self.event = event
        self.kept = kept
        self.releases = False
        self.hook = None

    def wait(self):
        assert self.event is not None
        self.event.wait()
        if self.hook is not None:
            self.hook()


class Buffer:
    """A wrapper as wide as DeepEP's."""

    num_sms = 20

    def __init__(self):
        self.runtime, self.group_size, self.depth = own.Entries(), 8, 300

    @staticmethod
    def sizes_of(ranks):
        table = {count: own.Sizes(Buffer.num_sms, 6, 256, 6, 128) for count in range(2, 26, 2)}
        assert ranks in table, f"no sizes of {ranks} ranks"
        return table[ranks]

    @staticmethod
    def both(bias):
        first, second = None, None
        if isinstance(bias, torch.Tensor):
            first = bias
        elif isinstance(bias, tuple):
            first, second = bias
        return first, second

    def layout(self, ids, experts, previous=None, is_async=False, there=False):
        by_rank, by_node, by_expert, is_in, event = self.runtime.layout(
            ids, experts, getattr(previous, "event", None), is_async, there
        )
        return by_rank, by_node, by_expert, is_in, Event(event)

    def dispatch(
        self,
        rows,
        handle=None,
        by_rank=None,
        by_node=None,
        is_in=None,
        by_expert=None,
        ids=None,
        weights=None,
        aligned=1,
        worst=0,
        sizes=None,
        previous=None,
        is_async=False,
        there=False,
    ):
        is_checked()
        sizes = self.sizes_of(self.group_size) if sizes is None else sizes
        if self.runtime.ranks() > 1:
            return None
        rows, scales = rows if isinstance(rows, tuple) else (rows, None)
        if handle is not None:
            assert ids is None and weights is None
            prefix, channels, received, places, is_in, heads = handle
            count = places.size(0)
            got, got_scales, _, _, _, _, _, _, _, _, event = self.runtime.dispatch(
                rows,
                scales,
                None,
                None,
                None,
                is_in,
                None,
                count,
                prefix,
                channels,
                aligned,
                worst,
                sizes,
                getattr(previous, "event", None),
                is_async,
                there,
            )
            return (got, got_scales) if scales is not None else got, None, None, None, None, Event(event)
        assert by_rank is not None and is_in is not None and by_expert is not None
        got, got_scales, got_ids, got_weights, counts, prefix, channels, received, places, heads, event = (
            self.runtime.dispatch(
                rows,
                scales,
                ids,
                weights,
                by_rank,
                is_in,
                by_expert,
                0,
                None,
                None,
                aligned,
                worst,
                sizes,
                getattr(previous, "event", None),
                is_async,
                there,
            )
        )
        handle = (prefix, channels, received, places, is_in, heads)
        both = (got, got_scales) if scales is not None else got
        return both, got_ids, got_weights, counts, handle, Event(event)

    def combine(self, rows, handle, weights=None, bias=None, sizes=None, previous=None, is_async=False, there=False):
        is_checked()
        sizes = self.sizes_of(self.group_size) if sizes is None else sizes
        if self.runtime.ranks() > 1:
            return None
        prefix, _, channels, places, _is_in, heads = handle
        first, second = Buffer.both(bias)
        got, got_weights, event = self.runtime.combine(
            rows,
            weights,
            first,
            second,
            places,
            prefix,
            channels,
            heads,
            sizes,
            getattr(previous, "event", None),
            is_async,
            there,
        )
        return got, got_weights, Event(event)


_buffer = Buffer()


def the_buffer(_rows):
    if _buffer is None or _buffer.group_size != 8 or _buffer.depth < 1:
        raise RuntimeError
    return _buffer


class Nothing(torch.autograd.Function):
    """A Function that does nothing: two tensors that have gradients, five others, three results."""

    @staticmethod
    def forward(ctx, rows, ids, weights, count, group, is_async=False, there=False):
        ctx.group, ctx.handle, ctx.is_async, ctx.there = group, count, is_async, there
        return rows, weights, None

    @staticmethod
    def backward(ctx, rows, weights, _none):
        assert ctx.group is None
        return rows, None, weights, None, None, None, None


class Dispatch(torch.autograd.Function):
    """As wide as a dispatch of Megatron-Core."""

    @staticmethod
    def forward(ctx, rows, ids, weights, count, group, is_async=False, there=False):
        previous = Event(own.Signal()) if is_async else None
        buffer = the_buffer(rows)
        by_rank, by_node, by_expert, is_in, event = buffer.layout(
            ids, count, previous=previous, is_async=is_async, there=there
        )
        got, got_ids, got_weights, counts, handle, after = buffer.dispatch(
            rows,
            ids=ids,
            weights=weights,
            by_rank=by_rank,
            by_node=by_node,
            is_in=is_in,
            by_expert=by_expert,
            previous=event,
            is_async=is_async,
            there=there,
        )
        if is_async:
            after.wait()
        ctx.group, ctx.handle, ctx.is_async, ctx.there = group, handle, is_async, there
        return got, got_ids, got_weights, torch.tensor(counts), handle


def measured():
    """Calls by name."""
    runtime, buffer, t = own.Entries(), Buffer(), [torch.zeros(8) for _ in range(8)]
    ids, sizes, kept = (
        torch.zeros(8, dtype=torch.int64),
        own.Sizes(20, 6, 256, 6, 128),
        own.Handle(),
    )
    kept.first = t[0]
    weights = torch.zeros(8, requires_grad=True)
    rows = torch.zeros(8, requires_grad=True)
    by_rank, _, by_expert, is_in, _ = buffer.layout(ids, 8)
    given = {"by_rank": by_rank, "is_in": is_in, "by_expert": by_expert, "ids": ids, "weights": t[1]}
    handle = buffer.dispatch(t[0], **given)[4]
    ops = torch.ops.extension_calls
    return {
        "python call of nothing": lambda: None,
        "pybind11: nothing": runtime.nothing,
        "pybind11: 1 tensor": partial(runtime.one, t[0]),
        "pybind11: 8 tensors": partial(runtime.eight, *t),
        "pybind11: 8 optional tensors, given": partial(runtime.eight_optional, *t),
        "pybind11: 8 optional tensors, None": partial(runtime.eight_optional, *[None] * 8),
        "pybind11: 8 numbers": partial(runtime.eight_numbers, *range(8)),
        "pybind11: an object": partial(runtime.object, sizes),
        "pybind11: 1 new tensor": partial(runtime.results, 1),
        "pybind11: 8 new tensors": partial(runtime.results, 8),
        "pybind11: a list of 8 numbers": runtime.numbers,
        "pybind11: a kernel found by its source": partial(runtime.compiled, 8, 128),
        "pybind11: an object of 5 numbers made": lambda: own.Sizes(20, 6, 256, 6, 128),
        "pybind11: a property's tensor read": lambda: kept.first,
        "pybind11: a property's tensor set": lambda: setattr(kept, "first", t[0]),
        "pybind11: a property's number read": lambda: kept.number,
        "torch.empty of a CPU": lambda: torch.empty(8, dtype=torch.int32),
        "library operator: 3 tensors": lambda: ops.written(t[0], t[1], t[2], 1.0),
        "library operator: 8 tensors": lambda: ops.written_of_eight(*t, 1.0),
        "library operator: 2 tensors, a new one": lambda: ops.returned(t[1], t[2], 1.0),
        "library operator: 3 tensors, by its overload": partial(ops.written.default, t[0], t[1], t[2], 1.0),
        "pybind11: 3 tensors": partial(own.written, t[0], t[1], t[2], 1.0),
        "layout, entry": partial(runtime.layout, ids, 8, None, False, False),
        "dispatch, entry": partial(
            runtime.dispatch,
            t[0],
            None,
            ids,
            t[1],
            by_rank,
            is_in,
            by_expert,
            0,
            None,
            None,
            1,
            0,
            sizes,
            None,
            False,
            False,
        ),
        "dispatch with a handle, entry": partial(
            runtime.dispatch,
            t[0],
            None,
            None,
            None,
            None,
            is_in,
            None,
            8,
            handle[0],
            handle[1],
            1,
            0,
            sizes,
            None,
            False,
            False,
        ),
        "combine, entry": partial(
            runtime.combine,
            t[0],
            None,
            None,
            None,
            handle[3],
            handle[0],
            handle[2],
            handle[5],
            sizes,
            None,
            False,
            False,
        ),
        "Buffer: layout": partial(buffer.layout, ids, 8),
        "Buffer: dispatch": partial(buffer.dispatch, t[0], **given),
        "Buffer: dispatch with sizes": partial(buffer.dispatch, t[0], sizes=sizes, **given),
        "Buffer: dispatch with a handle": partial(buffer.dispatch, t[0], handle),
        "Buffer: combine": partial(buffer.combine, t[0], handle),
        "Buffer: combine with sizes": partial(buffer.combine, t[0], handle, sizes=sizes),
        "Buffer: sizes of 12 numbers of ranks": partial(Buffer.sizes_of, 8),
        "autograd.Function of nothing": lambda: Nothing.apply(rows, ids, weights, 8, None),
        "autograd.Function of layout and dispatch": lambda: Dispatch.apply(rows, ids, weights, 8, None),
        "autograd.Function of nothing, no gradient": lambda: Nothing.apply(t[0], ids, t[1], 8, None),
    }


SAME = (  # of autograd_operators.py, which the reference host was measured with, too
    "view",
    "nn.Module of nothing",
    "nn.Module of nothing with a forward hook",
    "functional.linear, trained",
    "add of a constant",
    "mul by a constant",
    "silu",
    "rms_norm",
    "softmax",
    "to float32 and back",
    "chunk in 2 and cat",
    "index_select",
    "zeros and index_add_",
    "autograd.Function of add_",
    "custom_op of add_ and empty_like",
)


def each_us(call, calls=CALLS):
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls * 1e6


def by_clock(call):
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e6


def chained(operator):
    """A call of an operator that needs gradients, from rows of its own."""
    rows = torch.randn(8, 8, dtype=torch.bfloat16, requires_grad=True)
    return lambda: operator(rows, 0)


def backward_of(operator, count=IN_A_ROW):
    """Microseconds of a node of the backward pass in a row of its own kind."""
    given = torch.randn(8, 8, dtype=torch.bfloat16, requires_grad=True) * 1
    for index in range(count):
        given = operator(given, index)
    gradient = torch.ones_like(given)
    begun = time.perf_counter()
    given.backward(gradient)
    return (time.perf_counter() - begun) / count * 1e6


def quantile(times, share):
    return sorted(times)[int(share * (len(times) - 1))]


def main(turns=200):
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):  # it says which operators the machine lacks
        known, _ = operators(IN_A_ROW, "cpu", (8, 8))
    calls, scratch = measured(), torch.zeros(1)
    same = {name: chained(known[name]) for name in SAME}
    same |= {"slice, beside": chained(more_operators("cpu", (8, 8))["slice, beside"])}
    same |= {"add_ in place": lambda: scratch.add_(1), "empty_like": lambda: torch.empty_like(scratch)}
    back = {name: known[name] for name in ("view", "autograd.Function of add_", "custom_op of add_ and empty_like")}
    back["autograd.Function of nothing"] = lambda given, _: Nothing.apply(given, None, given, 8, None)[0]
    every, found, places = calls | same, {}, list(calls | same) * PLACES
    random.Random(SEED).shuffle(places)

    def note(name, setting, us, place=0):
        found.setdefault((name, setting), {}).setdefault(place, []).append(us)

    for _ in range(turns):
        clock = quantile([by_clock(lambda: None) for _ in range(50)], 0.5) - each_us(lambda: None)
        for gradients, setting in ((True, ""), (False, "no gradients, ")):
            with torch.set_grad_enabled(gradients):
                for name, call in (every if gradients else same).items():
                    note(name, setting + "in a row", each_us(call))
                for place, name in enumerate(places):
                    note(name, setting + "among others", by_clock(every[name]) - clock, place)
        for name, operator in back.items():
            note(name, "backward, in a row", backward_of(operator))
        note("empty in C++ of a CPU", "in a row", own.empty_us(1000))
    print("what,setting,low_us,median_us,count")
    for (name, setting), by_place in found.items():
        words = [f'"{one}"' if "," in one else one for one in (name, setting)]
        low, median = (mean(quantile(times, share) for times in by_place.values()) for share in (0.1, 0.5))
        print(*words, f"{low:.3f}", f"{median:.3f}", turns * len(by_place), sep=",")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
