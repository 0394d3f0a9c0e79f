"""What a call of an extension is made of, on the host of costs.toml, from tables of measurements.

Usage: python scripts/extension_parts.py

`extension_calls.csv` is of another host. Four calls that are Python and PyTorch's dispatcher alone were measured on
both among others; the ratio in the median brings parts to the host of costs.toml, and the least and the largest are
how far off that may be. Prints microseconds with this range, as replay/model/work/stacks/libraries.toml has them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

FOLDER = Path(__file__).parent.parent / "replay" / "studies" / "validate" / "measurements"
STATE, CLOCK, CLOCK_WITHOUT = 0.684, 0.957, 0.960
"""Of operators_mixed.csv: the host's state, and what clocks cost, with gradients and without (operators.toml)."""
ADD_US, EMPTY_US = 7.07, 2.41  # add_ in place, and empty, in a row on that host
AMONG, WITHOUT, ROW = "among others", "no gradients, among others", "in a row"
CUSTOM = "custom_op of add_ and empty_like"


def _read(name: str, *keys: str, value: str) -> dict[tuple[str, ...], float]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[key] for key in keys): float(row[value]) for row in rows}


HERE = _read("extension_calls.csv", "what", "setting", value="low_us")
_MIXED = _read("operators_mixed.csv", "what", "setting", value="time_us")
_HOST = {
    key[1:]: us
    for key, us in _read("host_costs.csv", "run", "what", "setting", value="time_us").items()
    if key[0] == "2"
}


def ratios() -> dict[str, float]:
    """Times on the host of costs.toml over those in the table, among others."""
    found = {}
    for setting, words, clock in ((AMONG, "forward, ", CLOCK), (WITHOUT, "no_grad forward, ", CLOCK_WITHOUT)):
        for name, among in (
            ("view", "among 736 operators, long"),
            ("nn.Module of nothing", "among 736 operators, long"),
            ("slice, beside", "among 84 operators, without views"),
            (CUSTOM, "among 736 operators, long"),
        ):
            there = _MIXED[name, words + among] * STATE * clock
            here = HERE[name, setting]
            if name == CUSTOM:  # but for the kernel and the tensor
                there -= ADD_US + EMPTY_US
                here -= HERE["add_ in place", setting] + HERE["empty_like", setting]
            found[f"{name}, {setting}"] = there / here
    return found


def backward_ratios() -> dict[str, float]:
    """The same of nodes of the backward pass, in a row of their kind."""
    back = {}
    for name, kernel, own in (
        ("view", 0.0, 0.0),
        ("autograd.Function of add_", ADD_US, HERE["add_ in place", ROW]),
        (CUSTOM, ADD_US + EMPTY_US, HERE["add_ in place", ROW] + HERE["empty_like", ROW]),
    ):
        there = _HOST[name, "backward, 32 in a row, each"]
        back[name] = (there - kernel) / (HERE[name, "backward, in a row"] - own)
    return back


FUNCTIONS = {"layout": 2, "dispatch": 5, "combine": 6}
"""Of Python, that a wrapper calls: itself, what it checks, what it wraps the event in. Two call into C++ once more."""
WRAPPERS = {
    "layout": "Buffer: layout",
    "dispatch": "Buffer: dispatch with sizes",
    "combine": "Buffer: combine with sizes",
}


def parts_here() -> dict[str, float]:
    """Parts on the host of the table, among others."""
    of = {name: HERE[name, AMONG] for name, setting in HERE if setting == AMONG}
    nothing = of["pybind11: nothing"]
    python = sum(of[whole] - of[f"{name}, entry"] for name, whole in WRAPPERS.items()) - 2 * nothing
    argument = (of["library operator: 8 tensors"] - of["library operator: 3 tensors"]) / 5
    return {
        "function": python / sum(FUNCTIONS.values()),
        "crossing": nothing,
        "argument": (of["pybind11: 8 tensors"] - nothing) / 8,
        "object": of["Buffer: sizes of 12 numbers of ranks"] / 12,
        "property": (of["pybind11: a property's tensor read"] + of["pybind11: a property's tensor set"]) / 2,
        "dispatcher": of["library operator: 3 tensors"] - 3 * argument,
        "operand": argument,
        "lookup": of["pybind11: a kernel found by its source"] - nothing,
        "autograd": of["autograd.Function of nothing"],
    }


def whole_calls() -> dict[str, tuple[float, float]]:
    """Calls as they were timed on the host of the table, among others, and the sums of their parts there."""
    part, of = parts_here(), {name: HERE[name, AMONG] for name, setting in HERE if setting == AMONG}
    new = (of["pybind11: 8 new tensors"] - of["pybind11: nothing"]) / 8
    counts = {  # functions, crossings, arguments, objects, new tensors
        "Buffer: layout": (2, 1, 1, 0, 3),
        "Buffer: dispatch": (6, 2, 6, 12, 8),
        "Buffer: dispatch with a handle": (6, 2, 4, 12, 4),
        "Buffer: combine": (7, 2, 5, 12, 1),
    }
    each = (part["function"], part["crossing"], part["argument"], part["object"], new)
    return {
        name: (of[name], sum(many * us for many, us in zip(count, each, strict=True))) for name, count in counts.items()
    }


def parts() -> dict[str, tuple[float, float, float]]:
    """Microseconds of each part on the host of costs.toml, with the least and the largest; and backward."""
    by = sorted(ratios().values())
    found = {name: (us * median(by), us * by[0], us * by[-1]) for name, us in parts_here().items()}
    low = HERE["pybind11: a kernel found by its source", ROW] - HERE["pybind11: nothing", ROW]
    found["lookup"] = (parts_here()["lookup"], low, found["lookup"][0])  # arithmetic, and cold code
    node, back = HERE["autograd.Function of nothing", "backward, in a row"], sorted(backward_ratios().values())
    return found | {"autograd, backward": (node * median(back), node * back[0], node * back[-1])}


if __name__ == "__main__":
    for name, ratio in {**ratios(), **backward_ratios()}.items():
        print(f"{name:55} {ratio:6.2f}")
    for name, both in whole_calls().items():
        print(f"{name:55} {both[0]:6.2f} {both[1]:6.2f}")
    here = parts_here()
    for name, (us, low, high) in parts().items():
        print(f"{name:20} {here.get(name, 0):6.2f} {us:6.2f}  {low:6.2f} to {high:6.2f}")
