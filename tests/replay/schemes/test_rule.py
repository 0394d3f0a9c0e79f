"""The rule for schemes, read from their source: they name work and never see a time.

See the docstring of `replay.model.machine`: times are answers of the machine that a scheme hands
on. Those that it states itself are options and constants in nanoseconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from loops import every

ROOM = Path(__file__).parents[3] / "replay" / "schemes"
FILES = sorted(set(ROOM.rglob("*.py")) - set((ROOM / "contract").rglob("*.py")))
TIME_UNITS = ("_ps", "_us", "_ms")


def breaches(source: str) -> Iterator[str]:
    """Places where a file reads, or states, a time that is not its own."""
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute):
            if node.attr == "system":
                yield f"line {line}: the hardware model"
            if node.attr == "edges":
                yield f"line {line}: edges of the graph, which the machine adds (`order`, `join`)"
            if node.attr == "ps" or node.attr.endswith(TIME_UNITS):
                yield f"line {line}: reads {node.attr}"
        elif isinstance(node, ast.keyword) and node.arg and node.arg.endswith(TIME_UNITS):
            yield f"line {node.value.lineno}: passes {node.arg}"
        elif isinstance(node, ast.Name) and node.id.lower().endswith(TIME_UNITS):
            yield f"line {line}: names {node.id}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "Time":
                yield f"line {line}: makes a time of a number"
            named = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if node.func.id == "getattr" and any(
                isinstance(name, str) and name.endswith(("system", "ps", *TIME_UNITS)) for name in named
            ):
                yield f"line {line}: reads {named}"


def unsourced(source: str) -> Iterator[str]:
    """Constants in nanoseconds that do not say, on their line, where they are from."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name) and target.id.endswith("_NS"):
                _, _, comment = lines[node.lineno - 1].partition("#")
                if len(comment.split()) < 3:
                    yield target.id


SEE_TIMES = {"tp/cais/moves.py", "tp/cais/options.py", "tp/cais/scheme.py", "tp/kernels.py"}
"""Schemes of tensor parallelism that compute with times. None may be added; who stops, leaves."""


def test_a_scheme_names_work_and_never_sees_a_time() -> None:
    found: dict[str, list[str]] = {}
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        if wrong := [*breaches(source), *unsourced(source)]:
            found[path.relative_to(ROOM).as_posix()] = wrong
    assert not {name: wrong for name, wrong in found.items() if name not in SEE_TIMES}
    assert set(found) == SEE_TIMES


@every(
    "line",
    [
        "x = machine.system.sm.push_ps(5)",
        "s = machine.system",
        "machine.graph.edges(a, b)",
        "t = machine.costs.poll().ps",
        "graph.add(duration_ps=5)",
        "wait_ps = 5",
        "t = Time(5)",
        "latency = fabric.uplink_latency_ps",
        'getattr(machine, "system")',
    ],
)
def test_what_breaks_the_rule_is_found(line: str) -> None:
    assert list(breaches(line))


def test_a_constant_without_a_source_is_found() -> None:
    assert list(unsourced("CAST_NS = 5\n")) == ["CAST_NS"]
    assert not list(unsourced("CAST_NS = 5  # measured on one GPU\n"))
    assert len(FILES) > 10
