"""What calls into libraries take their host: parts as they were measured, sums by hand, kernels that there are."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from repository_scripts import script_of

import hwmodel
from hwmodel.draws import range_of
from replay.chains.host_program import typical_program
from replay.model.work.kernel_lists import load
from replay.model.work.stacks import Stack, even_sizes, load_costs
from replay.model.work.stacks.stack import knows
from replay.schemes import SCHEMES
from tracegen import models

if TYPE_CHECKING:
    from replay.model.work.kernel_lists import ListedOperation
    from replay.model.work.kernel_lists.lists import Pass
    from replay.model.work.stacks import CallCosts

H100 = hwmodel.load("dgx-h100")
SERVES, TRAINS = load_costs("vllm"), load_costs("megatron")
LIBRARIES = sorted(set(TRAINS.libraries) - {"engines"})


MEASURED = script_of("extension_parts")


def test_parts_are_those_of_the_table_brought_to_the_host_of_costs() -> None:
    """To two digits, and so their ranges; backward, autograd's range is up to what a kernel of Triton has around it."""
    found = MEASURED.parts()
    back = found.pop("autograd, backward")
    for name, (us, low, high) in found.items():
        entry = SERVES.parts[name].forward_us
        assert entry.value == pytest.approx(us, rel=0.05), name
        by = SERVES.parts["function"].forward_us if entry.spread == "as part.function" else entry
        assert tuple(edge / by.value for edge in range_of(by)) == pytest.approx((low / us, high / us), rel=0.05), name
    entry, triton = TRAINS.parts["autograd"].backward_us, TRAINS.calls["triton"].around_backward_us
    assert triton is not None
    assert (entry.value, *range_of(entry)) == pytest.approx((*back[:2], triton.value), rel=0.01)


def test_the_table_has_each_setting_once_and_its_page_counts_its_rows() -> None:
    folder = MEASURED.FOLDER
    rows = (folder / "extension_calls.csv").read_text("utf-8").splitlines()[1:]
    page = (folder / "MEASURED.md").read_text("utf-8")
    assert len(rows) == len(MEASURED.HERE)
    assert f"| extension_calls.csv | low_us, median_us | {len(rows)} |" in page


def test_parts_add_up_to_whole_calls_where_both_were_timed() -> None:
    """But for the shortest, which is off by a microsecond."""
    for name, (whole, parts) in MEASURED.whole_calls().items():
        assert math.isclose(whole, parts, rel_tol=0.08, abs_tol=1.1), name


def test_an_operator_of_an_extension_by_hand() -> None:
    """A function, the dispatcher with three tensors, its result and its launch; a Function of autograd around."""
    by_hand = 1.1 + 4.6 + 3 * 0.75 + 2.6 + 3.5
    assert SERVES.call_ps("library", "forward") == round(by_hand * 1e6)
    assert TRAINS.call_ps("library", "forward") == round((by_hand + 29.9) * 1e6)
    assert TRAINS.call_ps("library", "backward") == round((by_hand + 12.5) * 1e6)


PARTS_US = {
    "function": 1.1,
    "crossing": 0.75,
    "argument": 0.19,
    "object": 1.5,
    "property": 1.5,
    "lookup": 10.3,
    "signal": 0.53,
    "record": 0.95,
    "tensor": 2.6,
    "launch": 3.5,
}
"""Parts of calls in microseconds, the same in both passes."""
Parts = dict[str, int]


def parts(**counts: int) -> Parts:
    """Parts of a call by their names."""
    return counts


NOTHING = parts()
EVENT = parts(autograd=1, function=5, crossing=1, object=1)
"""fused_a2a.py around DeepEP's first version: a Function, five functions of Python, and an event that they make."""
CALLS: dict[str, dict[str, tuple[Parts, Parts]]] = {
    "deepep": {
        # Three tensors; four are recorded where the call is asynchronous, as in training alone.
        "layout": (parts(function=2, crossing=1, argument=1, tensor=3, signal=2), EVENT | parts(record=4)),
        "notify": (parts(function=6, crossing=2, argument=6, object=12, tensor=2, signal=1), NOTHING),
        # Eight tensors that there always are, indices and weights of both sides, and two counts.
        "dispatch": (parts(function=2, crossing=1, tensor=6, signal=1, record=8 + 4 + 2), NOTHING),
        "cached notify of dispatch": (parts(function=6, crossing=2, argument=4, object=12, signal=1), EVENT),
        "cached notify of combine": (parts(function=6, crossing=2, argument=5, object=12, signal=1), EVENT),
        "combine": (parts(function=2, crossing=1, tensor=1, signal=1, record=6), NOTHING),
    },
    "deepep-ll": {
        "dispatch": (parts(function=5, crossing=1, argument=2, tensor=5, signal=1), NOTHING),
        "combine": (parts(function=5, crossing=1, argument=5, tensor=1, signal=1), NOTHING),
    },
    "deepep-v2": {
        "dispatch": (
            parts(function=11, crossing=1, argument=3, tensor=5, signal=1, lookup=1),
            parts(autograd=1, function=2),
        ),
        "dispatch, copy epilogue": (parts(function=2, tensor=4, signal=1, lookup=1), NOTHING),
        "combine": (parts(function=6, crossing=1, argument=4, signal=1, lookup=1), parts(autograd=1, function=2)),
        "combine, reduce epilogue": (parts(function=1, tensor=1, signal=1, lookup=1), NOTHING),
    },
    "hybrid-ep": {
        "memset of sums": (NOTHING, NOTHING),
        # Nine tensors of its handle, and six settings of the buffer's template.
        "scan": (
            parts(function=5, crossing=6, argument=1, object=1, property=6, tensor=9),
            parts(autograd=1, function=2),
        ),
        "permute preprocessing": (parts(tensor=5), NOTHING),
        "padded counts": (parts(tensor=1), NOTHING),
        "tokens to send": (NOTHING, NOTHING),
        "gate weights to send": (NOTHING, NOTHING),
        "expected values of flags": (NOTHING, NOTHING),
        "device sync": (NOTHING, NOTHING),
        "sync between nodes": (NOTHING, NOTHING),
        # The second call of the Function around the scan, and one of its own on the way back.
        "dispatch": (parts(crossing=1, argument=2, tensor=2), parts(function=1)),
        "permute": (parts(property=12, crossing=1), NOTHING),
        "unpermute": (parts(function=5, crossing=2, argument=2, object=1, property=11), parts(autograd=1, function=2)),
        "combine": (parts(crossing=1, tensor=1), NOTHING),
    },
}
"""By scheme and kernel: parts of the call but for its launch, and what autograd adds."""
BACKWARD: dict[tuple[str, str], Parts] = {
    # With a handle: neither indices, weights nor counts, but two matrices that are kept.
    ("deepep", "dispatch"): parts(function=2, crossing=1, tensor=4, signal=1, record=8 + 2),
    # Weights go back as well.
    ("deepep", "combine"): parts(function=2, crossing=1, tensor=2, signal=1, record=8),
    ("hybrid-ep", "dispatch"): parts(autograd=1, function=8, crossing=3, argument=2, object=1, property=12, tensor=2),
}
"""Parts of calls that are others in the backward pass."""


def us_of(counts: Parts, direction: Pass = "forward") -> float:
    """Of a kernel, with its launch."""
    autograd = {"forward": 29.9, "backward": 12.5}[direction]
    return PARTS_US["launch"] + sum(count * {**PARTS_US, "autograd": autograd}[part] for part, count in counts.items())


@pytest.mark.parametrize("scheme", LIBRARIES)
def test_calls_of_a_library_by_hand(scheme: str) -> None:
    """Parts that were counted in the sources, in serving and, with what autograd adds, in training."""
    serves, trains = SERVES.of(scheme), TRAINS.of(scheme)
    assert set(CALLS[scheme]) == set(TRAINS.libraries[scheme])
    for name, (alone, trained) in CALLS[scheme].items():
        both = Counter(alone) + Counter(trained)
        back = BACKWARD.get((scheme, name), both)
        assert serves.kernel_ps(name, "forward") == pytest.approx(us_of(alone) * 1e6, abs=1), name
        assert trains.kernel_ps(name, "forward") == pytest.approx(us_of(both) * 1e6, abs=1), name
        assert trains.kernel_ps(name, "backward") == pytest.approx(us_of(back, "backward") * 1e6, abs=1), name


def test_kernels_that_a_library_does_not_name_are_an_engine_s_operators() -> None:
    assert SERVES.of("deepep").kernel_ps("silu_and_mul", "forward") == SERVES.call_ps("library", "forward")
    fast = Stack.of("vllm", hwmodel.load("dgx-h100", {"host.speed": 2.0})).costs.of("deepep")
    rest = us_of(CALLS["deepep"]["combine"][0])
    assert fast.kernel_ps("combine", "forward") == pytest.approx(rest * 5e5, abs=1)


def test_a_row_of_a_list_is_the_library_s_call_once() -> None:
    """Its tensors are among the parts, and what autograd adds is paid once."""
    rows, costs = listed_rows("deepep", "forward")
    each, around = us_of(CALLS["deepep"]["layout"][0]), 29.9 + 5 * 1.1 + 0.75 + 1.5 + 4 * 0.95
    layout = rows["layout"]
    assert (layout.call, layout.tensors) == ("library", 4)
    assert costs.ps(layout) == pytest.approx((each + around) * 1e6, abs=1)
    assert costs.ps(layout._replace(kernels=2)) == pytest.approx((2 * each + around) * 1e6, abs=1)
    rows, costs = listed_rows("deepep", "backward")
    assert costs.ps(rows["dispatch"]) == pytest.approx(us_of(BACKWARD["deepep", "dispatch"]) * 1e6, abs=1)


def test_a_row_pays_memsets_that_it_launches() -> None:
    """HybridEP clears two tables before its scan, whose rows the list has as no kernels."""
    rows, costs = listed_rows("hybrid-ep", "forward")
    assert costs.ps(rows["memset of sums"]) == 2 * 3_500_000


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("scheme", ["deepep", "hybrid-ep", "megatron"])
def test_a_given_cost_of_libraries_has_tensors_and_events_in_it(scheme: str, direction: Pass) -> None:
    """In rows of lists, too: as many times as they call, and nothing beside."""
    rows, costs = listed_rows(scheme, direction, "library_us=5")
    called = {name: row for name, row in rows.items() if row.call == "library"}
    assert any(row.tensors > row.kernels for row in called.values()) or scheme == "megatron"
    for name, row in called.items():
        assert costs.ps(row) == max(row.calls, row.kernels) * 5_000_000, name


def listed_rows(scheme: str, direction: Pass, settings: str = "") -> tuple[dict[str, ListedOperation], CallCosts]:
    """Rows of Megatron's list around a scheme's exchange by name, and the costs that they pay."""
    stack = Stack.of(f"megatron-plain:{settings}", H100).with_dispatcher(scheme)
    sizes = even_sizes(models.load("qwen3-30b-a3b"), tokens=64, ranks=8)
    return {row.name: row for row in stack.operations(sizes, ["dispatch", "combine"], direction)}, stack.costs


OF_LISTS = {"hybrid-ep": "nodes=doca,places_apart=true"}
"""Options of Megatron's list with which it has all kernels of a scheme."""


@pytest.mark.parametrize("scheme", LIBRARIES)
def test_kernels_of_libraries_are_their_scheme_s_or_its_list_s(scheme: str) -> None:
    """In a pass, in a node or among several; every kernel, so that a wrong name is no call of nobody's."""
    names = set[str]()
    for is_backward in (False, True):
        names |= {one.name for one in typical_program(SCHEMES[scheme], is_backward=is_backward) or ()}
        if knows(load("megatron"), scheme):
            names |= listed_rows(scheme, "backward" if is_backward else "forward", OF_LISTS.get(scheme, ""))[0].keys()
    assert set(TRAINS.libraries[scheme]) <= names


@pytest.mark.parametrize("scheme", LIBRARIES)
def test_one_given_cost_is_that_of_all_calls_of_libraries(scheme: str) -> None:
    given = SERVES.of(scheme).replace({"library_us": 5})
    names = SERVES.libraries[scheme]
    assert {given.kernel_ps(name, "forward") for name in names} == {5_000_000}


def test_drawn_costs_move_all_that_is_made_of_them() -> None:
    """Each value is off as its key is, up to the edge of its range at 1.645 deviations; given ones stay."""
    edge, costs = 1.6448536269514722, SERVES.of("deepep")

    def of_functions(key: str) -> float:
        return edge if key == "part.function" else 0.0

    drawn = costs.draw(of_functions)
    more = drawn.kernel_ps("notify", "forward") - costs.kernel_ps("notify", "forward")
    measured = 6 * 1.1 + 2 * 0.75 + 6 * 0.19 + 12 * 1.5  # which were brought there by one ratio
    assert more == pytest.approx(measured * (1.7 / 1.1 - 1) * 1e6, rel=1e-6)
    assert drawn.call_ps("torch", "forward") == SERVES.call_ps("torch", "forward")
    given = SERVES.replace({"torch_us": 7, "library_us": 5}).draw(lambda _: 3.0)
    assert (given.call_ps("torch", "forward"), given.call_ps("library", "forward")) == (7_000_000, 5_000_000)
    assert given.call_ps("tensor", "forward") > SERVES.call_ps("tensor", "forward")


def test_each_key_that_a_cost_is_drawn_by_is_named_once() -> None:
    """Autograd's node is drawn by itself, what precedes it forward with all that one ratio brought there."""
    asked = list[str]()

    def ask(key: str) -> float:
        asked.append(key)
        return 1.645 if key == "part.autograd" else 0.0

    drawn = TRAINS.draw(ask)
    assert sorted(TRAINS.uncertain) == sorted(set(asked))
    assert {"call.torch", "operator.view", "part.function", "part.autograd"} <= set(asked)
    assert "part.crossing" not in asked
    assert drawn.call_ps("library", "forward") == TRAINS.call_ps("library", "forward")
    more = drawn.call_ps("library", "backward") - TRAINS.call_ps("library", "backward")
    assert more == pytest.approx((32.7 - 12.5) * 1e6, rel=1e-3)
