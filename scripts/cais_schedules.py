"""Print what schedules of CAIS show and results do not hold, for experiments/dense/CAIS.md.

    python scripts/cais_schedules.py              # all tables
    python scripts/cais_schedules.py links        # one

All other tables of that page are those of the study `moereplay sweep cais`. GPUs have half of their
SMs and half of their peak, as in the paper (section IV-B). Each table is a function below.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from replay.engine import Timeline
from replay.experiments import dense as tensor
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass

Part = Literal["attention-to-mlp", "mlp-to-attention"]

HALF: dict[str, Any] = {"gpu.num_sms": 66, "compute.bf16_peak_TFLOP_per_s": 494.7}
BUSY = (ResourceClass.UPLINK, ResourceClass.DOWNLINK, ResourceClass.SM)
VARIANTS: dict[str, dict[str, bool]] = {
    "merge alone": {"coordination": False, "overlap": False},
    "merge, coordination": {"overlap": False},
    "all": {},
}
"""Options of CAIS: its parts one after the other."""


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
        scheme=scheme,
        model=model,
        part=part,
        direction=direction,
        options=dict(options or {}),
        overrides=dict(overrides),
        observe=observe,
    )


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


# ---- blocks on an SM -----------------------------------------------------------------------------

SUB_LAYERS: list[dict[str, Any]] = [
    {"model": model, "part": part, "direction": direction}
    for model in ("mega-gpt-4b", "mega-gpt-8b", "llama-7b")
    for part in ("attention-to-mlp", "mlp-to-attention")
    for direction in ("forward", "backward")
]
TILES: dict[str, list[list[int]] | None] = {"as chosen": None, "128 x 128": [[128, 128]]}


def blocks() -> Iterator[str]:
    """By tiles and blocks on an SM, 0 as fit: times over the default, links in use, and most."""
    # Means over all sub-layers. Studies cannot vary a list such as that of the tiles.
    usual = [run(**layer).time_us for layer in SUB_LAYERS]
    for tiles, shapes in TILES.items():
        overrides = HALF if shapes is None else {**HALF, "compute.bf16_blocks": shapes}
        for number in (0, 1, 2, 4):
            for coordination in (True, False):
                options = {"resident_blocks": number, "coordination": coordination}
                found = [run(options, overrides=overrides, **layer) for layer in SUB_LAYERS]
                ratios = [one.time_us / us for one, us in zip(found, usual, strict=True)]
                in_use = [(one.up.utilisation + one.down.utilisation) / 2 for one in found]
                yield row(
                    tiles,
                    number,
                    "coordinated" if coordination else "not coordinated",
                    f"{np.exp(np.log(ratios).mean()):.2f}",
                    f"{np.mean(in_use):.2f}",
                    f"{max(in_use):.2f}",
                )


TABLES: dict[str, Callable[[], Iterator[str]]] = {table.__name__: table for table in (sizes, links, blocks)}


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
