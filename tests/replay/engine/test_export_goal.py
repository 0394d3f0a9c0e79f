"""GOAL files: under LogGOPSim's rules every task begins when it did, and the graph comes back."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loggop_rules
import pytest
import random_graphs

from replay.engine import EngineError, GraphBuilder, Timeline, UserError, schedule
from replay.engine.export import export
from replay.engine.export.goal import write_goal
from replay.engine.export.programs import resolved_edges

ALL_SORTS = {
    "max_gates": 2,
    "max_pools": 2,
    "max_tables": 1,
    "durations": (0, 1, 2, 3),
    "latencies": (0, 0, 2, 5),
    "priorities": (0, 1),
    "num_tasks": 60,
}


def random_timelines(count: int) -> Iterator[Timeline]:
    """Schedules of random graphs: of a third of them, since others end in a deadlock."""
    found = 0
    for seed in range(count):
        recipe = random_graphs.Recipe(seed=seed, is_shuffled=seed % 2 == 1, **ALL_SORTS)
        with contextlib.suppress(EngineError):
            yield schedule(random_graphs.random_graph(recipe))
            found += 1
    assert found >= 0.3 * count


def place_of(ranks: list[Any]) -> dict[str, tuple[int, int]]:
    """Rank and turn there of every calculation and delay, by label."""
    return {
        label: (rank, turn)
        for rank, program in enumerate(ranks)
        for turn, (label, operation) in enumerate(program.items())
        if operation.way == "calc"
    }


def edges(ranks: list[Any]) -> dict[tuple[str, str], int]:
    """Messages by the calculations or delays they are from and for, with their sizes."""
    ends: dict[tuple[int, int, int], dict[str, Any]] = {}
    for rank, program in enumerate(ranks):
        before, open_ = "", []
        for label, operation in program.items():
            if operation.way == "send":
                key = (rank, operation.peer, operation.tag)
                ends.setdefault(key, {})["send"] = (before, operation.size)
            elif operation.way == "recv":
                open_.append((operation.peer, rank, operation.tag))
            elif not label.startswith("w"):
                for key in open_:
                    ends.setdefault(key, {})["recv"] = label
                before, open_ = label, []
        assert not open_
    return {(end["send"][0], end["recv"]): end["send"][1] for end in ends.values()}


def task(label: str) -> int:
    found = re.fullmatch(r"[td](\d+)", label)
    assert found is not None
    return int(found[1])


# LogGOPSim's rules -----------------------------------------------------------------------------


def text(tmp_path: Path, *programs: str) -> Any:
    path = tmp_path / "by hand.goal"
    bodies = (f"rank {rank} {{\n{body}\n}}" for rank, body in enumerate(programs))
    path.write_text("\n".join([f"num_ranks {len(programs)}", *bodies]))
    return loggop_rules.read(path)


def test_a_calc_is_done_when_it_begins(tmp_path: Path) -> None:
    """What other processors of a rank do is in no order; this form ended early."""
    ranks = text(tmp_path, "a: calc 5 cpu 0\nb: calc 7 cpu 1\nc: calc 2 cpu 1\nb requires a\n")
    assert loggop_rules.run(ranks).end == 9
    assert loggop_rules.run(ranks).began[0, "b"] == 2
    assert loggop_rules.run(ranks, done="end").end == 12
    one = text(tmp_path, "a: calc 5\nb: calc 7\nb requires a")
    assert loggop_rules.run(one).end == 12


def test_a_message_is_there_for_the_processor_that_sent_it(tmp_path: Path) -> None:
    sender = "a: calc 5 cpu 1\ns: send 11b to 1 tag 3 cpu 1\ns requires a"
    for cpu, end in ((0, 7), (1, 12)):
        receiver = f"r: recv 11b from 0 tag 3 cpu {cpu}\nb: calc 7 cpu {cpu}\nb requires r"
        assert loggop_rules.run(text(tmp_path, sender, receiver)).end == end
    costs = {"latency": 100, "overhead": 10, "gap": 1, "gap_per_byte": 2, "overhead_per_byte": 0}
    # The receiver is busy for o and the bytes behind the first.
    assert loggop_rules.run(text(tmp_path, sender, receiver), **costs).end == 5 + 110 + 30 + 7


# The export ------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("done", ["start", "end"])
@pytest.mark.parametrize("unit_ps", [1, 2])
def test_every_task_begins_when_it_did(done: str, unit_ps: int, tmp_path: Path) -> None:
    for timeline in random_timelines(80):
        write_goal(timeline, tmp_path / "p.goal", unit_ps=unit_ps)
        ranks = loggop_rules.read(tmp_path / "p.goal")
        found = loggop_rules.run(ranks, done=done)
        begun = {label: at for (_, label), at in found.began.items() if label[0] in "td"}
        ready = {f"t{task}": at for task, at in enumerate((timeline.start_ps // unit_ps).tolist())}
        ready |= {label: int(timeline.end_ps[task(label)]) // unit_ps for label in begun if label.startswith("d")}
        assert begun == ready
        assert found.end == timeline.makespan_ps // unit_ps


def test_graph_comes_back_from_goal(tmp_path: Path) -> None:
    for timeline in random_timelines(40):
        check_edges(timeline, tmp_path)


def check_edges(timeline: Timeline, tmp_path: Path) -> None:
    export(timeline, "goal", tmp_path / "p.goal")
    ranks = loggop_rules.read(tmp_path / "p.goal")
    place = place_of(ranks)
    assert sorted(label for label in place if label.startswith("t")) == sorted(
        f"t{task}" for task in range(timeline.graph.num_tasks)
    )
    messages = edges(ranks)
    expected = set()
    for source, target in zip(*(e.tolist() for e in resolved_edges(timeline)), strict=True):
        delay = f"d{source}"
        expected.add((delay if delay in place else f"t{source}", f"t{target}"))
    expected |= {(f"t{task(label)}", label) for label in place if label.startswith("d")}
    for begin, end in expected:
        # On one server, what waits comes later.
        is_one = place[begin][0] == place[end][0]
        assert place[begin] < place[end] if is_one else (begin, end) in messages
    assert set(messages) <= expected


def test_goal_of_a_crossing(crossing: Timeline, tmp_path: Path) -> None:
    written = write_goal(crossing, tmp_path / "p.goal", unit_ps=1)
    ranks = loggop_rules.read(tmp_path / "p.goal")
    assert written.num_events == sum(len(rank) for rank in ranks)
    # Wire bytes where the graph has them, else payload; a byte within a GPU.
    sizes = edges(ranks)
    assert (sizes["d0", "t2"], sizes["d6", "t8"], sizes["d2", "t4"]) == (16_384, 14_336, 1)
    place = place_of(ranks)
    assert place["t4"][0] != place["t5"][0]  # side by side on two servers of the pool
    assert place["t0"][0] == place["t1"][0]
    said = dict(re.findall(r"// (GPU \d.*)\nrank (\d+) \{", (tmp_path / "p.goal").read_text()))
    assert int(said["GPU 0: a server of uplink 0"]) == place["t0"][0]
    assert int(said["GPU 0: what takes no time"]) == place["t10"][0]  # where its first predecessor is
    assert ranks[place["d0"][0]]["d0"].time == 250_000


def test_with_a_network_transfers_take_what_it_says(crossing: Timeline, tmp_path: Path) -> None:
    write_goal(crossing, tmp_path / "p.goal", unit_ps=1, transfers="network")
    ranks = loggop_rules.read(tmp_path / "p.goal")
    # Without a network only the first tile is left, and the ways into it and out of the last row.
    assert loggop_rules.run(ranks).end == 900_000 + 2 * 250_000
    assert "d0" not in place_of(ranks)
    # Per byte, each server takes what comes in: two rows there, one behind the other.
    there = loggop_rules.run(ranks, gap_per_byte=10).began
    assert there[place_of(ranks)["t3"][0], "t3"] == 2 * 10 * 16_383


def test_rounding_does_not_add_up(tmp_path: Path) -> None:
    builder = GraphBuilder(["row"])
    port = builder.resource("uplink", group="uplink", owner=0)
    builder.add(1_000, resource=port, duration_ps=31_858)
    write_goal(schedule(builder.build()), tmp_path / "p.goal")
    times = [operation.time for operation in loggop_rules.read(tmp_path / "p.goal")[0].values()]
    assert set(times) == {31, 32}
    assert sum(times) == 31_858


def test_what_goal_loses_is_said(tmp_path: Path) -> None:
    builder = GraphBuilder(["a"])
    port = builder.resource("port", group="port", owner=1)
    other = builder.resource("other", group="port", servers=2, owner=1)
    pool = builder.credit_pool("room", 1)
    ids = builder.add(3, resource=port, duration_ps=5, priority=[2, 1, 1], rank=[0, 1, 2])
    builder.edges(ids[0], ids[1:])
    builder.take(builder.add(2, resource=other, duration_ps=7), pool)
    written = write_goal(schedule(builder.build()), tmp_path / "p.goal")
    content = (tmp_path / "p.goal").read_text()
    for words in (
        "2 takes of credits",
        "priorities",
        "1 tasks send to several ranks",
        "1000 ps",
        "a rank of the file is one server",
        "L, o, g, G and O of 0",
    ):
        assert any(words in note for note in written.notes)
        assert words in content


def test_a_wait_for_a_buffer_is_held(tmp_path: Path) -> None:
    builder = GraphBuilder(["a"])
    pair = [builder.resource(name, group="pair", owner=0) for name in ("left", "right")]
    pool = builder.credit_pool("room", 1)
    builder.take(builder.add(2, resource=pair, duration_ps=[5, 7]), pool)
    written = write_goal(schedule(builder.build()), tmp_path / "p.goal", unit_ps=1)
    ranks = loggop_rules.read(tmp_path / "p.goal")
    assert [list(rank) for rank in ranks] == [["t0"], ["w1", "t1"]]
    assert any("1 tasks are held" in note for note in written.notes)
    assert loggop_rules.run(ranks).end == 12


def test_more_servers_than_processors(tmp_path: Path) -> None:
    """LogGOPSim has room for 255 processors a rank and crashes above; no rank has a second."""
    builder = GraphBuilder(["a"])
    many = builder.resource("many", "many", servers=300, owner=0)
    builder.add(300, resource=many, duration_ps=2_000)
    export(schedule(builder.build()), "goal", tmp_path / "p.goal")
    ranks = loggop_rules.read(tmp_path / "p.goal")
    assert len(ranks) == 300
    assert " cpu " not in (tmp_path / "p.goal").read_text()
    assert loggop_rules.run(ranks).end == 2


def test_nothing_to_do(tmp_path: Path) -> None:
    export(schedule(GraphBuilder(["a"]).build()), "goal", tmp_path / "p.goal")
    assert [list(rank) for rank in loggop_rules.read(tmp_path / "p.goal")] == [["empty"]]


def test_units_are_positive(crossing: Timeline, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unit_ps is 0"):
        write_goal(crossing, tmp_path / "p", unit_ps=0)


# The programs themselves -----------------------------------------------------------------------

LOGGOPSIM = os.environ.get("MOEREPLAY_LOGGOPSIM", "")
"""Folder with LogGOPSim's programs, built: `LogGOPSim` and `txt2bin`."""


def loggopsim(path: Path, *, L: int = 0, o: int = 0, g: int = 0, G: int = 0) -> str:
    """What LogGOPSim prints of a file, with all that it does."""
    binary = path.with_suffix(".bin")
    subprocess.run([f"{LOGGOPSIM}/txt2bin", "-i", path, "-o", binary], check=True)
    numbers = {"L": L, "o": o, "g": g, "G": G, "O": 0, "S": 2**31 - 1}
    options = [part for name, value in numbers.items() for part in (f"-{name}", str(value))]
    return subprocess.run(
        [f"{LOGGOPSIM}/LogGOPSim", "-f", binary, "-b", "-v", *options],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def end_of(said: str) -> int:
    found = re.search(r"Maximum finishing time at host \d+: (\d+)", said)
    assert found is not None, said
    return int(found[1])


@pytest.mark.skipif(not LOGGOPSIM, reason="MOEREPLAY_LOGGOPSIM names no folder with LogGOPSim")
def test_loggopsim_ends_when_the_schedule_does(crossing: Timeline, tmp_path: Path) -> None:
    for timeline in random_timelines(40):
        for unit_ps in (1, 2):
            write_goal(timeline, tmp_path / "p.goal", unit_ps=unit_ps)
            assert end_of(loggopsim(tmp_path / "p.goal")) == timeline.makespan_ps // unit_ps
    # The rules are those of the program, with a network, too.
    for transfers in ("schedule", "network"):
        write_goal(crossing, tmp_path / "p.goal", unit_ps=1, transfers=transfers)
        ranks = loggop_rules.read(tmp_path / "p.goal")
        for L, o, g, G in ((0, 0, 0, 0), (100, 0, 0, 0), (7, 3, 0, 0), (0, 0, 5, 0), (70, 3, 5, 2)):
            rules = loggop_rules.run(ranks, latency=L, overhead=o, gap=g, gap_per_byte=G)
            said = loggopsim(tmp_path / "p.goal", L=L, o=o, g=g, G=G)
            assert end_of(said) == rules.end


@pytest.mark.skipif(not LOGGOPSIM, reason="MOEREPLAY_LOGGOPSIM names no folder with LogGOPSim")
@pytest.mark.parametrize("scheme", ["ideal", "deepep", "dysharp", "moe-hub"])
def test_loggopsim_runs_a_layer(scheme: str, tmp_path: Path) -> None:
    import replay

    seen: list[Timeline] = []
    replay.run("gpt-oss-20b-decode", scheme=scheme, layer=12, observe=seen.append)
    write_goal(seen[0], tmp_path / "p.goal", unit_ps=1)
    said = loggopsim(tmp_path / "p.goal")
    assert end_of(said) == seen[0].makespan_ps
    # A calculation that is found too early is found again.
    begun: dict[int, list[int]] = {}
    for rank, time in re.findall(r"^\[(\d+)\] found loclop .* - t: (\d+) .*\n(?!-- locop)", said, re.MULTILINE):
        begun.setdefault(int(rank), []).append(int(time))
    for rank, program in enumerate(loggop_rules.read(tmp_path / "p.goal")):
        labels = [label for label, operation in program.items() if operation.way == "calc"]
        for label, time in zip(labels, begun.get(rank, []), strict=True):
            if label.startswith("t"):
                assert seen[0].start_ps[task(label)] == time
