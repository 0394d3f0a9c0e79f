"""What calls into libraries take their host: parts as they were measured, sums by hand, kernels that there are."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

import hwmodel
from hwmodel.draws import range_of
from replay.model.work.kernel_lists import load
from replay.model.work.stacks import Stack, even_sizes, load_costs
from tracegen import models

ROOT = Path(__file__).parents[3]
H100 = hwmodel.load("dgx-h100")
SERVES, TRAINS = load_costs("vllm"), load_costs("megatron")
LIBRARIES = sorted(set(TRAINS.libraries) - {"engines"})


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MEASURED = script("extension_parts")


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


def test_deepep_s_calls_by_hand() -> None:
    costs = SERVES.of("deepep")
    functions, crossings, sizes, signal, launch, tensor = 6 * 1.1, 2 * 0.75, 12 * 1.5, 0.53, 3.5, 2.6
    notify = functions + crossings + 6 * 0.19 + sizes + 2 * tensor + signal + launch
    combine = functions + crossings + 5 * 0.19 + sizes + signal + launch
    assert costs.kernel_ps("notify", "forward") == pytest.approx(notify * 1e6, abs=1)
    assert costs.kernel_ps("cached notify of combine", "forward") == pytest.approx(combine * 1e6, abs=1)
    rest = 1.1 + tensor + signal + launch
    assert costs.kernel_ps("combine", "forward") == pytest.approx(rest * 1e6, abs=1)
    # What the library does not say is an operator of the engine's.
    assert costs.kernel_ps("silu_and_mul", "forward") == SERVES.call_ps("library", "forward")
    fast = Stack.of("vllm", hwmodel.load("dgx-h100", {"host.speed": 2.0})).costs.of("deepep")
    assert fast.kernel_ps("combine", "forward") == pytest.approx(rest * 5e5, abs=1)


def test_a_row_of_a_list_is_the_library_s_call_once() -> None:
    """Its tensors are among the parts, and what autograd adds is paid once."""
    stack = Stack.of("megatron-plain", H100).with_dispatcher("deepep")
    sizes = even_sizes(models.load("qwen3-30b-a3b"), tokens=64, ranks=8)
    layout = next(row for row in stack.operations(sizes, ["dispatch"], "forward") if row.name == "layout")
    parts = 2 * 1.1 + 0.75 + 0.19 + 3 * 2.6 + 2 * 0.53 + 3.5
    around = 29.9 + 5 * 1.1 + 0.75 + 1.5 + 4 * 1.65
    assert (layout.call, layout.tensors) == ("library", 4)
    assert stack.costs.ps(layout) == pytest.approx((parts + around) * 1e6, abs=1)
    assert stack.costs.ps(layout._replace(kernels=2)) == pytest.approx((2 * parts + around) * 1e6, abs=1)
    rest = {row.name: row for row in stack.operations(sizes, ["combine"], "backward")}["dispatch"]
    again = 2 * 1.1 + 0.75 + 4 * 2.6 + 0.53 + 13 * 1.65 + 3.5
    assert stack.costs.ps(rest) == pytest.approx(again * 1e6, abs=1)


@pytest.mark.parametrize("scheme", LIBRARIES)
def test_kernels_of_libraries_are_a_list_s_or_their_scheme_s(scheme: str) -> None:
    listed = {row.name for part in load("megatron").parts for row in part.rows if row.call == "library"}
    source = "".join(path.read_text("utf-8") for path in (ROOT / "replay/schemes/ep").rglob("*.py"))
    for kernel in set(TRAINS.libraries[scheme]) - listed:
        assert f'"{kernel}"' in source, kernel


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
    assert {"call.torch", "operator.view", "part.function"} <= set(SERVES.uncertain)
    assert "part.crossing" not in SERVES.uncertain
