"""CPU time of each test and fixture, with the processes that it starts: a plugin of pytest.

Usage: PYTHONPATH=tests/oracle CPU_TIMES=FOLDER pytest -p cpu_times ...
       python tests/oracle/cpu_times.py FOLDER [DEPTH]
       python tests/oracle/cpu_times.py FOLDER lengthy > tests/lengthy.txt
       python tests/oracle/cpu_times.py FOLDER costly > tests/costly.txt

The first writes a table for each process of the tests into the folder. The second sums them by
file, by test function (DEPTH 1, the default) or by case (DEPTH 2), largest first. Out of a run of both
tiers (`-m "not bench"`) the third lists the test functions that are extended for their time
alone, and the fourth the cases that wait for a release for it. CPU time is
comparable where wall time is not: on cores that others use, too. A session's fixture is counted for
itself, and not in the test that asks for it first.
"""

from __future__ import annotations

import csv
import os
import re
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest


def spent() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


class Table:
    """Rows of what was done and its CPU seconds; what it contains has its own row."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float]] = []
        self.inside = 0.0

    def timed(self, kind: str, name: str) -> Generator[None, object, object]:
        """Time what a hook surrounds."""
        outer, self.inside, begun = self.inside, 0.0, spent()
        try:
            return (yield)
        finally:
            whole = spent() - begun
            self.rows.append((kind, name, whole - self.inside))
            self.inside = outer + whole


_table = Table()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    is_marked = any(not mark.args for mark in item.iter_markers("extended"))
    return (yield from _table.timed("extended" if is_marked else "test", item.nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    name = f"{fixturedef.baseid}::{fixturedef.argname}"
    if fixturedef.scope == "function":
        return (yield)
    return (yield from _table.timed(f"fixture of a {fixturedef.scope}", name))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Processes that a fixture has started are waited for, and counted, behind the last test of a file."""
    if nextitem is not None and nextitem.path == item.path:
        return (yield)
    return (yield from _table.timed("end of a file", item.nodeid.partition("::")[0]))


def pytest_collection_finish() -> None:
    _table.rows.append(("start", "imports and collection", spent()))


def pytest_sessionfinish() -> None:
    place = os.environ.get("CPU_TIMES")
    if place and _table.rows:  # what has run nothing has waited for those who did, and would count them again
        _table.rows.append(("start", "all", spent()))
        Path(place).mkdir(parents=True, exist_ok=True)
        with (Path(place) / f"{os.getpid()}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(_table.rows)


LENGTHY_S = 0.5
"""Test functions that take longer, all their cases of the default tier together, are extended."""
KEPT = frozenset(
    f"tests/{name}"
    for name in (
        "golden/test_golden.py::test_documents_of_commands_are_what_they_were",
        "golden/test_golden.py::test_results_are_what_they_were",
        "replay/cli/test_cli.py::test_compare_takes_all_schemes_and_shows_each",
        "replay/compute/test_tile_order.py::test_sms_take_tiles_as_the_twin_does",
        "replay/dense/test_contract.py::test_the_contract",
        "replay/engine/test_engine.py::test_equals_twin",
        "replay/engine/test_engine.py::test_equals_twin_on_seeded_graphs",
        "replay/engine/test_engine.py::test_same_without_compiler_and_in_another_process",
        "replay/engine/test_explained.py::test_bounds_hold_and_path_adds_up",
        "replay/engine/test_levels.py::test_highest_is_the_most_at_the_end_of_an_instant",
        "replay/engine/test_parts.py::test_parts_are_scheduled_as_the_whole",
        "replay/engine/test_parts.py::test_the_critical_path_is_that_of_the_whole",
        "replay/engine/test_standard_work.py::test_standard_work_takes_what_others_found",
        "replay/measure/test_pieces.py::test_results_of_pieces_are_those_of_the_whole",
        "replay/run/test_chain.py::test_a_chain_goes_through_its_layers_in_order",
        "replay/run/test_chain.py::test_payload_of_a_chain_is_the_sum_of_its_layers",
        "replay/run/test_identity.py::test_identity_changes_with_everything_that_changes_the_run",
        "replay/run/test_interleave.py::test_micro_batches_keep_the_contract",
        "replay/run/test_sms_in_chains.py::test_no_instant_has_more_sms_in_use_than_there_are",
        "replay/run/test_spec.py::test_a_result_is_run_again_byte_for_byte",
        "replay/run/test_stack.py::test_every_scheme_trains_in_practice",
        "replay/schemes/test_broken_schemes.py::test_a_defect_is_found_and_said",
        "replay/schemes/test_communication_alone.py::test_it_is_the_communication_of_a_few_layers",
        "replay/schemes/test_ideal.py::test_no_option_beats_it",
        "replay/schemes/test_ideal.py::test_no_scheme_beats_it_on_a_machine_out_of_balance",
        "replay/schemes/test_rule.py::test_a_scheme_names_work_and_never_sees_a_time",
        "replay/schemes/test_scheme_contract.py::test_engine_and_its_slow_twin_agree",
        "replay/schemes/test_scheme_contract.py::test_layers_that_schemes_refuse_are_few_and_cannot_be_built",
        "replay/schemes/test_scheme_contract.py::test_the_contract",
        "replay/schemes/test_scheme_tables.py::test_the_table_is_the_present_one",
        "replay/schemes/test_scheme_traffic.py::test_closed_forms_are_the_count",
        "replay/serve/test_serving.py::test_littles_law",
        "replay/serve/test_serving.py::test_nothing_is_lost_and_no_limit_is_passed",
        "replay/serve/test_serving_twin.py::test_equals_the_plain_twin",
        "replay/steps/test_stacks.py::test_a_step_under_a_stack",
        "replay/sweeps/test_sweep.py::test_an_interrupted_sweep_goes_on_and_ends_alike",
        "replay/sweeps/test_sweep.py::test_numbers_are_those_of_runs",
        "replay/test_seeds.py::test_a_seed_decides_what_is_drawn",
        "replay/trace/test_traces.py::test_bytes_are_the_same_whoever_replays",
        "replay/train/test_composed.py::test_any_times_give_the_ends_of_the_slow_twin",
        "test_layering.py::test_schemes_describe_work_and_know_no_time",
        "test_layering.py::test_there_is_something_to_read",
        "test_mutants.py::test_every_entry_matches_its_file_once_and_its_tests_exist",
        "test_pages.py::test_page",
        "test_pages.py::test_readme",
        "test_startup.py::test_nothing_heavy_is_loaded",
        "test_words.py::test_no_class_is_a_bare_participle",
        "test_words.py::test_nothing_is_formatted_by_hand",
        "test_words.py::test_public_class_names_occur_once",
        "test_words.py::test_summaries_name_or_order",
        "tracegen/capture/test_families.py::test_the_captured_routing_is_what_the_model_executed",
        "tracegen/file/test_hdf5.py::test_what_is_written_is_read_back_whole_or_in_part",
        "tracegen/generate/test_generate.py::test_the_same_call_gives_the_same_trace_in_another_process",
    )
)
"""Longer ones that stay in the default tier: each is the one that shows its fact."""


CI_S = 8.0
"""CPU seconds that CI has for a test function of the extended tier, all its cases together."""
CI_ONE_S = 20.0
"""CPU seconds that CI has for the cheapest case, which shows the fact, where it takes more than that."""


ALWAYS = tuple(
    f"tests/{name}"
    for name in (
        "golden/test_golden.py::",
        "replay/dense/test_contract.py::test_the_contract",
        "replay/engine/test_private.py::test_planted_kernels_are_not_executed",
        "replay/schemes/test_scheme_contract.py::test_the_contract",
        "replay/validate/test_validation.py::test_a_wrong_constant_is_noticed",
        "test_pages.py::test_page",
    )
)
"""In CI whatever they take: golden results, contracts, constants, examples of documents, and that nobody's files
are executed."""


def costly(cases: Iterable[tuple[str, float]]) -> list[str]:
    """Cases of the extended tier for which CI has no time, out of the names of all with their CPU seconds.

    CI takes the cheapest of each function.
    """
    functions: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, seconds in cases:
        if name.startswith(ALWAYS):
            continue
        functions[name.partition("[")[0]].append((seconds, name))
    found = []
    for each in functions.values():
        total = 0.0
        for place, (seconds, name) in enumerate(sorted(each)):
            total += seconds
            if total > (CI_ONE_S if place == 0 else CI_S):
                found.append(name)
    return sorted(found)


def _rows(place: str) -> Iterator[tuple[str, str, float]]:
    for path in sorted(Path(place).glob("*.csv")):
        with path.open(newline="") as file:
            for kind, name, cpu in csv.reader(file):
                yield kind, name, float(cpu)


def _print_costly(place: str) -> None:
    lengthy = (Path(__file__).parent.parent / "lengthy.txt").read_text("utf-8").split()
    cases = [
        (name, cpu)
        for kind, name, cpu in _rows(place)
        if kind == "extended" or (kind == "test" and name.partition("[")[0] in lengthy)
    ]
    sys.stdout.writelines(f"{name}\n" for name in costly(cases))


def main(place: str, depth: str = "1") -> None:
    """Print sums of a folder's tables."""
    if depth == "costly":
        _print_costly(place)
        return
    is_list = depth == "lengthy"
    seconds: defaultdict[str, float] = defaultdict(float)
    number: Counter[str] = Counter()
    for kind, name, cpu in _rows(place):
        key = name
        if depth == "0":
            key = name.partition("::")[0]
        elif depth != "2":
            key = re.sub(r"\[.*", "", name, flags=re.DOTALL)
        if is_list and kind != "test":
            continue
        if kind not in ("test", "extended"):
            key = f"({kind}) {key}"
        seconds[key] += cpu
        number[key] += 1
    if is_list:
        names = sorted(key for key, total in seconds.items() if total > LENGTHY_S and key not in KEPT)
        sys.stdout.writelines(f"{name}\n" for name in names)
        return
    for key, total in sorted(seconds.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"{total:8.2f} {number[key]:5}  {key}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
