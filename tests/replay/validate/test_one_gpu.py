"""Training steps on one GPU: what is launched, and that hosts pace what has few tokens."""

from __future__ import annotations

import csv
import dataclasses
import statistics
from collections import Counter
from importlib import resources

import pytest

import hwmodel
from replay.studies.validate import one_gpu
from replay.studies.validate.bench import Bench

TABLES = resources.files("replay.studies.validate.measurements")
STEPS = one_gpu.TABLE.rows()
PART_OF = {"router": "experts", "dispatch": "experts", "combine": "experts"}


def read(name):
    return list(csv.DictReader((TABLES / f"{name}.csv").read_text("utf-8").splitlines()))


def launched(row):
    """Launches by pass and part."""
    found = Counter()
    for _, rows in one_gpu.passes(row, one_gpu.stack_of(row)):
        for one in rows:
            is_update = one.part == "optimizer"
            part = "" if is_update else PART_OF.get(one.part, one.part)
            found["optimizer" if is_update else one.direction, part] += one.kernels
    return found


def of_variant(variant, run=2):
    return [row for row in STEPS if (row["variant"], row["run"]) == (variant, run)]


def test_a_step_launches_what_was_counted_at_all_tokens_and_layers():
    every = {(one["run"], one["variant"], one["tokens"], one["layers"]): one for one in read("steps")}
    for row in of_variant("eager"):
        seen = every["2", "eager", str(row["tokens"]), str(row["layers"])]
        count = sum(int(seen[kind]) for kind in ("kernels", "copies", "fills"))
        assert sum(launched(row).values()) == count == int(seen["launches"])
    for row in of_variant("waits"):
        seen = every["2", "waits", str(row["tokens"]), str(row["layers"])]
        rows = [one for _, part in one_gpu.passes(row, one_gpu.stack_of(row)) for one in part]
        assert sum(one.waits for one in rows) == int(seen["stream_waits"]) == row["layers"]
        assert sum(one.kernels + one.copies for one in rows) == int(seen["launches"])


@pytest.mark.parametrize("tokens", [512, 8192])
def test_parts_of_a_layer_launch_what_the_profiler_saw(tokens):
    (row,) = (row for row in of_variant("eager") if row["layers"] == 1)
    setting = {**row.setting, "tokens": tokens, "sequence": min(tokens, 2048)}
    seen = Counter((one["phase"], one["part"]) for one in read("step_kernels") if one["tokens"] == str(tokens))
    assert launched(dataclasses.replace(row, setting=setting)) == seen


def test_operators_are_those_that_the_profiler_saw_in_their_order():
    """A row names its operators, of which some were seen within another one."""
    (row,) = (row for row in of_variant("eager") if row["layers"] == 1)
    seen = [one["operator"] for one in read("step_kernels") if one["tokens"] == "512"]
    rows = [one for _, part in one_gpu.passes(row, one_gpu.stack_of(row)) for one in part]
    kernels = [one for one in rows for _ in range(one.kernels)]
    assert len(kernels) == len(seen)
    plain = [
        (one.source.split()[1].strip(":,"), operator)
        for one, operator in zip(kernels, seen, strict=True)
        if one.call == "torch" and one.kernels == 1 and "," not in one.source
    ]
    assert len(plain) > 70
    named = sum(name in operator for name, operator in plain)
    assert named > 0.9 * len(plain), [pair for pair in plain if pair[0] not in pair[1]]


# Autograd's nodes of a layer of scripts/moe_transformer.py, counted behind a pass on a CPU (PyTorch 2.13). A norm is
# one node on a GPU. Nodes that another's cost has: transposes of trained weights, minus signs (as products), splits
# and joins (as a pair), and where gradients of weights end.
NODES = {
    "view": 11 + 4 + 6 + 1 + 2,  # View, UnsafeView, Transpose, Unsqueeze; a sum over a dimension counts as two
    "add": 4,
    "mul": 6 + 2 + 1,  # Mul, Neg, Div
    "rms_norm": 2,
    "linear": 5,
    "grouped_mm": 2,
    "attention": 1,
    "silu": 1,
    "softmax": 1,
    "topk": 1,
    "cast": 2,
    "chunk_and_cat": 2 + 1,
    "index_select": 2,
    "zeros_and_index_add": 1,
    "sum_of_gradients": 2 + 1 + 2 + 2 + 1,  # turned, weights of experts, two more of three products, residuals, router
}


def test_a_layers_calls_backward_are_its_nodes_of_autograd():
    one, two = (_calls(layers) for layers in (1, 4))
    each = {name: (two[name] - one[name]) / 3 for name in two}
    assert {name: each[name] for name in NODES} == NODES


def _calls(layers):
    (row,) = (row for row in of_variant("eager") if (row["layers"], row["tokens"]) == (layers, 512))
    found = Counter()
    for is_backward, rows in one_gpu.passes(row, one_gpu.stack_of(row)):
        for one in rows:
            if is_backward:
                found[one.operator] += one.calls
    return found


def test_modules_look_up_what_they_have():
    """Of attention five modules, five weights, four biases and four buffers; of experts and router seven."""
    (row,) = (row for row in of_variant("eager") if row["layers"] == 1)
    (_, forward), *_ = one_gpu.passes(row, one_gpu.stack_of(row))
    found = {one.part: one.calls for one in forward if one.operator == "module_lookup"}
    assert found == {"embedding": 3, "attention": 5 + 5 + 4 + 4, "router": 7, "head": 5}


def test_few_tokens_take_as_long_as_their_host():
    row = next(row for row in of_variant("eager") if row["tokens"] == 128)
    stack = one_gpu.stack_of(row)
    host = sum(stack.costs.ps(one) for _, rows in one_gpu.passes(row, stack) for one in rows)
    found = one_gpu.predict(Bench(), row)
    update = hwmodel.load(one_gpu.SYSTEM).hbm.stream_ps(14 * row["parameters"])  # BF16, read and written
    assert 0 < found - (host + update) / 1e9 < 0.15, "the optimiser's kernels end behind their launches"
    assert found == pytest.approx(
        one_gpu.predict(Bench(), next(r for r in of_variant("eager") if r["tokens"] == 512)),
        rel=1e-3,
    )


def test_without_host_costs_eager_steps_are_those_of_graphs():
    """A host a thousand times as fast: what is left are gaps, 0.8 us longer in a stream."""
    free = Bench({"host.speed": 1000.0})
    for eager, graph in zip(of_variant("eager"), of_variant("graph"), strict=True):
        assert (eager["tokens"], eager["layers"]) == (graph["tokens"], graph["layers"])
        without, held = one_gpu.predict(free, eager), one_gpu.predict(free, graph)
        gaps = 0.8e-3 * sum(launched(eager).values())
        assert without == pytest.approx(held + gaps, rel=0.02)
        if eager["tokens"] <= 2048:
            assert without < 0.35 * eager.measured


def test_a_slower_host_is_seen_in_one_operator():
    speeds = one_gpu.speeds()
    assert speeds[one_gpu.COSTS_RUN] == 1
    assert speeds[3] == pytest.approx(0.67, abs=0.01)


def test_the_optimisers_time_goes_with_that_of_both_passes():
    """Nothing of the model is in it: what moves both is the host. One variant's host waits for its GPU forward."""
    steps = [
        {name: float(step[f"{name}_host_ms"]) for name in ("forward", "backward", "optimizer")}
        for step in read("steps")
        if step["layers"] == "4"
        and (step["variant"] == "eager" or (step["variant"] == "waits" and step["tokens"] != "32768"))
    ]
    assert len(steps) == 18
    passes = [step["forward"] + step["backward"] for step in steps]
    assert round(statistics.correlation(passes, [step["optimizer"] for step in steps]), 2) == 0.82
