"""Print the tables of replay/experiments/dense/CAIS.md, and all numbers in its text.

    python scripts/cais_tables.py                       # all of them: some minutes
    python scripts/cais_tables.py parts tables          # some

GPUs have half of their SMs and half of their peak, as in the paper (section IV-B), but for the
model of twice the width in `layers`. Each table is a function below.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

import hwmodel
from replay.engine import Timeline
from replay.experiments import dense as tensor
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass

Part = Literal["attention-to-mlp", "mlp-to-attention"]

HALF: dict[str, Any] = {"gpu.num_sms": 66, "compute.bf16_peak_TFLOP_per_s": 494.7}
MODELS = ("mega-gpt-4b", "mega-gpt-8b", "llama-7b")
PARTS: tuple[Part, ...] = ("attention-to-mlp", "mlp-to-attention")
PASSES = ("forward", "backward")
BASELINES = (
    "tp-nvls", "sp-nvls", "coconet", "fuselib", "t3", "coconet-nvls", "fuselib-nvls", "t3-nvls",
    "ladm",
)  # fmt: skip
BUSY = (ResourceClass.UPLINK, ResourceClass.DOWNLINK, ResourceClass.SM)
BASE = {"coordination": False, "overlap": False}
VARIANTS: dict[str, dict[str, bool]] = {
    "nothing": {"merge": False, "overlap": False},
    "merge alone": BASE,
    "merge, coordination": {"overlap": False},
    "all": {},
    "without coordination": {"coordination": False},
    "without overlap": {"overlap": False},
    "without merge unit": {"merge": False},
    "without traffic control": {"traffic_control": False},
}
"""Options of CAIS: its parts one after the other, then one off at a time."""


def run(
    options: Mapping[str, Any] | None = None,
    *,
    model: str = "llama-7b",
    scheme: str = "cais",
    part: Part = "attention-to-mlp",
    direction: str = "forward",
    overrides: Mapping[str, Any] = HALF,
    observe: Callable[[Timeline, Machine], object] | None = None,
) -> tensor.TensorResult:
    """Replay a sub-layer; what is not given is RUN of the document."""
    return tensor.run(
        scheme=scheme, model=model, part=part, direction=direction, options=dict(options or {}),
        overrides=dict(overrides), observe=observe,
    )  # fmt: skip


def run_and_see(
    see: Callable[[Timeline, Machine], Iterator[str]], *given: Any, **settings: Any
) -> tuple[tensor.TensorResult, list[str]]:
    """Replay like `run`, and say what is seen in the schedule."""
    seen: list[str] = []

    def observe(timeline: Timeline, machine: Machine) -> None:
        seen.extend(see(timeline, machine))

    return run(*given, observe=observe, **settings), seen


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


# ---- what each part is worth ---------------------------------------------------------------------


def parts() -> Iterator[str]:
    """Times of every sub-layer by parts of CAIS, and of other schemes; means over CAIS's."""
    yield from _parts(HALF)


def slow_links() -> Iterator[str]:
    """The same with links of half the rate: the paper does not state that of its own."""
    yield from _parts({**HALF, "link.bandwidth_GB_per_s": 12.5})


def _parts(overrides: Mapping[str, Any]) -> Iterator[str]:
    names = (*VARIANTS, *BASELINES, "kernels alone")
    yield row("us", *names)
    times: dict[str, list[list[float]]] = {direction: [] for direction in PASSES}
    busy: list[list[float]] = []
    for direction, model, part in itertools.product(PASSES, MODELS, PARTS):
        at: Any = {"model": model, "part": part, "direction": direction, "overrides": overrides}
        mine = [run(options, **at) for options in VARIANTS.values()]
        found = [each.time_us for each in mine]
        found += [run(scheme=name, **at).time_us for name in BASELINES]
        found.append(mine[0].products_us)
        times[direction].append(found)
        busy += [[(each.up.utilisation + each.down.utilisation) / 2 for each in mine]]
        yield row(f"{model}, {part}, {direction}", *(f"{time:,.0f}" for time in found))
    yield row("busy share of the links, mean", *(f"{each:.2f}" for each in np.mean(busy, axis=0)))
    yield row("over CAIS, geometric mean", "forward", "backward", "all")
    every = [*times["forward"], *times["backward"]]
    columns = [_over_all_parts(each) for each in (times["forward"], times["backward"], every)]
    for place, name in enumerate(names):
        yield row(name, *(f"{column[place]:.2f}" for column in columns))


def _over_all_parts(times: Sequence[Sequence[float]]) -> list[float]:
    """Geometric means over sub-layers of (sub-layer, variant) times over those of all parts."""
    array = np.array(times)
    ratios = array / array[:, [list(VARIANTS).index("all")]]
    means: list[float] = np.exp(np.log(ratios).mean(axis=0)).tolist()
    return means


def layers() -> Iterator[str]:
    """Whole layers: the wide model on whole GPUs, and one of half of its width."""
    yield row("time over cais", "pass", "cais, us", *BASELINES)
    whole: dict[str, Any] = {}
    for model, overrides in (("cais-llama-full", whole), ("llama-7b", HALF)):
        for direction in ("forward", "training"):
            compared = tensor.compare(
                schemes=["cais", *BASELINES], model=model, overrides=overrides, direction=direction
            )
            mine = compared["cais"].time_us
            over = (f"{compared[name].time_us / mine:.2f}" for name in BASELINES)
            yield row(model, direction, f"{mine:,.0f}", *over)


# ---- one sub-layer -------------------------------------------------------------------------------


def sizes() -> Iterator[str]:
    """SM time by kind and bytes on the ports of RUN."""
    for scheme in ("sp-nvls", "cais"):
        result, sm_time = run_and_see(_sm_time, scheme=scheme)
        yield row(scheme, f"{result.time_us:,.1f} us", *sm_time)
    for role, nbytes in result.measures.mechanisms.wire_bytes.items():
        yield row(role, f"{nbytes.uplink[0]:,} B up", f"{nbytes.downlink[0]:,} down")
    for name, port in (("up", result.up), ("down", result.down)):
        each = (port.gather_bytes[0], port.reduce_bytes[0], port.wire_bytes[0])
        yield row(name, *(f"{nbytes / 1e6:.2f} MB" for nbytes in each))


def _sm_time(timeline: Timeline, machine: Machine) -> Iterator[str]:
    """Mean time that SMs spend on tasks of each kind, as if all SMs shared it equally."""
    graph = timeline.graph
    sms = machine.num_ranks * machine.sms.compute
    for kind in (Kind.GEMM2, Kind.COMBINE_SEND, Kind.BETWEEN, Kind.GEMM1):
        total = int(timeline.service_ps[(graph.kind == kind) & (graph.resource >= 0)].sum())
        yield f"{kind.name} {total / sms / 1e6:.1f}"


def options() -> Iterator[str]:
    """Times of two sub-layers by single options."""
    changed: list[dict[str, Any]] = [{}]
    changed += [{"piece_bytes": 1024 * size} for size in (2, 4, 8, 16, 32)]
    changed += [{"slices": count} for count in (1, 2, 4, 8, 16)]
    changed += [{"order": "same"}, {"group_blocks": 8}]
    narrow: dict[str, Any] = {"model": "mega-gpt-4b", "part": "mlp-to-attention"}
    yield row("us", "RUN", "mega-gpt-4b, mlp-to-attention")
    for each in changed:
        said = ", ".join(f"{name}={value}" for name, value in each.items()) or "defaults"
        yield row(said, *(f"{run(each, **at).time_us:.1f}" for at in ({}, narrow)))


# ---- links ---------------------------------------------------------------------------------------


def links() -> Iterator[str]:
    """How long each step takes, and busy shares in it: ports up, ports down, SMs."""
    for model in ("llama-7b", "mega-gpt-4b"):
        for name in ("merge alone", "merge, coordination", "all"):
            _, steps = run_and_see(_steps, VARIANTS[name], model=model)
            yield row(model, name, *steps)


def _steps(timeline: Timeline, machine: Machine) -> Iterator[str]:
    """Three steps, and all of them.

    Apart: the first product until all sums have arrived, the norm, the second product from its
    first request on. In one kernel: until that request, until all sums have arrived, the rest.
    """
    graph, start, end = timeline.graph, timeline.start_ps, timeline.end_ps
    classes = machine.resources.classes(graph)
    groups = [np.flatnonzero(classes == each) for each in BUSY]
    sizes = [graph.resources.servers[group].sum() for group in groups]
    first = np.isin(graph.kind, (Kind.GEMM2, Kind.COMBINE_UP, Kind.COMBINE_DOWN))
    summed, asked = end[first].max(), start[graph.kind == Kind.DISPATCH_REQUEST_UP].min()
    cuts = [0, *sorted((int(summed), int(asked))), int(timeline.makespan_ps)]
    for begin, until in [*itertools.pairwise(cuts), (0, cuts[-1])]:
        shares = []
        for group, size in zip(groups, sizes, strict=True):
            of = np.isin(graph.resource, group)
            overlap = np.minimum(end[of], until) - np.maximum(start[of], begin)
            shares.append(int(overlap.clip(min=0).sum()) / (until - begin) / size)
        yield f"{(until - begin) / 1e6:.0f} us: {', '.join(f'{share:.2f}' for share in shares)}"


# ---- tables and skew -----------------------------------------------------------------------------


def tables() -> Iterator[str]:
    """How large tables must be, by how far apart GPUs begin."""
    rooms = (10, 20, 40, 80, 160, 320)
    yield row(
        "launch skew, us", "coordination", "room, KB", "in use, KB a port", "missed", "look-ups",
        "us", "skew of loads, us: mean, p99", "of sums",
    )  # fmt: skip
    for skew, coordination, room in itertools.product((0, 10, 35), (False, True), rooms):
        given = {"launch_skew_us": float(skew), "coordination": coordination}
        result = run({**given, "table_bytes": 1024 * room})
        use = result.measures.mechanisms.tables["merge unit"]
        apart = result.skew.between_gpus
        ports = hwmodel.load(result.system.name).fabric.num_planes
        yield row(
            skew, "yes" if coordination else "no", room, f"{use.high_water / 1024 / ports:.0f}",
            f"{use.missed:,}", f"{use.lookups:,}", f"{result.time_us:.0f}",
            *(f"{apart[what].mean_us:.1f}, {apart[what].p99_us:.1f}" for what in sorted(apart)),
        )  # fmt: skip


def coordination() -> Iterator[str]:
    """What the packets of coordination cost: bytes, and time where nothing is evicted."""
    roomy = {"table_bytes": 320 * 1024}
    for overlap in (False, True):
        for on in (False, True):
            result = run({**roomy, "coordination": on, "overlap": overlap})
            signals = result.measures.mechanisms.wire_bytes["signals"].uplink[0]
            use = result.measures.mechanisms.tables["merge unit"]
            yield row(
                f"overlap={overlap}, coordination={on}", f"{result.time_us:.1f} us",
                f"{signals:,} B of {result.up.wire_bytes[0]:,}", f"{use.missed} missed",
            )  # fmt: skip


def timers() -> Iterator[str]:
    """Times over those of all parts with timers of 40 us, by length of the timers; as `parts`."""
    cases: list[Any] = [
        {"model": model, "part": part, "direction": direction}
        for direction, model, part in itertools.product(PASSES, MODELS, PARTS)
    ]
    whole = np.array([run(**each).time_us for each in cases])
    yield row("coordination", "timers, us", "forward", "backward", "all", "RUN, us")
    for on, timer in itertools.product((True, False), (0.0, 10.0, 40.0, 100.0)):
        given = {"coordination": on, "timeout_us": timer}
        times = np.array([run(given, **each).time_us for each in cases])
        ratios = np.log(times / whole)
        means = (ratios[:6].mean(), ratios[6:].mean(), ratios.mean())
        run_us = times[MODELS.index("llama-7b") * len(PARTS)]
        yield row(on, timer, *(f"{np.exp(mean):.2f}" for mean in means), f"{run_us:.0f}")


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    table.__name__: table
    for table in (parts, slow_links, layers, sizes, options, links, tables, coordination, timers)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("table", nargs="*", help=f"{', '.join(TABLES)} [all]")
    wanted = parser.parse_args().table or list(TABLES)
    if unknown := [name for name in wanted if name not in TABLES]:
        parser.error(f"no table {', '.join(unknown)}: there are {', '.join(TABLES)}")
    for name in wanted:
        print(f"{name}: {TABLES[name].__doc__}\n", flush=True)
        for line in TABLES[name]():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
