"""A whole model that serves requests as they arrive: from settings to measures.

`moereplay infer` serves a batch that is there from the start. Here requests arrive at a rate or as
a file says, and iterations are what the engine's rules make of them. Both are timed alike.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from replay.errors import UserError
from replay.experiments.base.compare import asked_of
from replay.experiments.base.identity import identity
from replay.experiments.base.result import package_version
from replay.experiments.base.rows import result_row
from replay.experiments.serve import capacity, handover, request_files
from replay.experiments.serve.arrival_spec import ArrivalSpec
from replay.experiments.serve.capacity import Capacity
from replay.experiments.serve.experiment import EXPERIMENT
from replay.experiments.serve.measures import Served, measure
from replay.experiments.serve.requests import drawn, drawn_from, lengths
from replay.experiments.serve.result import named
from replay.experiments.serve.room import GB, room_of
from replay.experiments.serve.rules import Batching, Speculation
from replay.experiments.serve.serving import Pool, serve
from replay.experiments.serve.setup import Setup, Side
from replay.experiments.serve.spec import InferSpec
from replay.files import write_text
from replay.schemes.ep.base import LayerRefusedError
from tracegen.shared.display.shown import Shown
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from replay.experiments.serve.book import Timeline
    from replay.experiments.serve.requests import Requests
    from replay.model.work.batch import Phase
    from replay.schemes.outside import AllowCode


class Cache(Strict):
    """Caches of a phase: positions of each worker, and their bytes on each of its GPUs."""

    phase: Literal["prefill", "decode"]
    workers: int
    positions: int
    position_bytes: int


class Arrived(Strict, Shown):
    """Requests that arrived, served under one scheme for prompts and one for decoding.

    Attributes
    ----------
    run_id
        SHA-256 of everything that decides the result: model, machine, schemes, requests and rules.
    served
        The run; of a search, the one at the largest rate that keeps the limits, if there is one.
    capacity
        The search, whose own `served` is left out.
    """

    format: Literal["moereplay-arrivals/1"] = "moereplay-arrivals/1"
    run_id: str
    version: str
    spec: InferSpec
    arrivals: ArrivalSpec
    caches: list[Cache]
    served: Served | None
    capacity: Capacity | None

    @property
    def name(self) -> str:
        """Of its schemes."""
        return named(self.spec.of_prompts, self.spec.scheme)

    def _rows(self) -> list[dict[str, Any]]:
        """One."""
        return [result_row(self.name, self)]


class ArrivedComparison(Strict, Shown):
    """Several schemes that serve the same requests.

    Attributes
    ----------
    left_out
        By name, why a scheme was not replayed.
    """

    format: Literal["moereplay-arrivals-comparison/1"] = "moereplay-arrivals-comparison/1"
    results: list[Arrived]
    left_out: dict[str, str] = Field(default_factory=dict)

    def _rows(self) -> list[dict[str, Any]]:
        """One for each result."""
        return [row for one in self.results for row in one._rows()]

    def to_json(self) -> str:
        """The whole comparison."""
        document: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        return json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, whole or not at all."""
        write_text(path, self.to_json())


def arrive(spec: InferSpec, asked: ArrivalSpec, *, allow_code: AllowCode = False) -> Arrived:
    """Serve requests that arrive.

    Parameters
    ----------
    spec
        Model, machine, schemes. Its lengths are those of requests that are drawn and have no
        distribution of their own.
    asked
        What arrives, and the engine's rules.
    allow_code
        Whether a scheme's file that the spec names may be executed, see `replay.schemes.find`.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    if asked.search and asked.limits is None:
        message = "a search of the largest rate needs a limit: ttft_ms or tpot_ms"
        raise UserError(message)
    requests = requests_of(spec, asked)
    means = {"prompt": requests.prompt.mean(), "output": requests.output.mean() - 1}
    typical = {name: max(round(float(mean)), 1) for name, mean in means.items()}
    setup = Setup.of(spec.changed(lengths="even", **typical), allow_code=allow_code)
    pools, caches = _pools(setup, asked, int(requests.prompt.max()))
    drafts = setup.drafts
    speculation = None
    if drafts.count:
        speculation = Speculation(
            drafts=drafts.count,
            acceptance=drafts.acceptance,
            is_sampled=True,
            seed=asked.arrival_seed,
        )
    position = caches[0].position_bytes

    def handover_ps(tokens: int) -> int:
        """Every GPU of a worker sends its cache to one of the other worker."""
        sender, receiver = setup.prefill.system, setup.decode.system
        return handover.arrived_ps([0], [tokens * position], sender, receiver, 1, 1)

    def run(arriving: Requests) -> Timeline:
        return serve(
            arriving, pools[0], decode=pools[1] if setup.is_apart else None,
            handover_ps=handover_ps, router=asked.router, speculation=speculation,
        )  # fmt: skip

    found, served = None, None
    if asked.search and asked.limits is not None:
        found = capacity.most(requests, run, asked.limits, tolerance=asked.rate_tolerance)
        found, served = found.model_copy(update={"served": None}), found.served
    else:
        served = measure(run(requests), asked.limits)
    return Arrived(
        run_id=_run_id(setup, asked, requests), version=package_version(), spec=spec,
        arrivals=asked, caches=caches, served=served, capacity=found,
    )  # fmt: skip


def _run_id(setup: Setup, asked: ArrivalSpec, requests: Requests) -> str:
    """Identity: requests enter by value, and not by the name of their file."""
    return identity({
        "iterations": setup.run_id,
        "requests": requests.content_id,
        "rules": asked.model_dump(mode="json", exclude={"arrivals"}),
    })  # fmt: skip


def compare(
    spec: InferSpec,
    asked: ArrivalSpec,
    schemes: Sequence[str],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[], object] | None = None,
    allow_code: AllowCode = False,
) -> ArrivedComparison:
    """Serve the same requests under several schemes; parameters as those of `replays.compare`.

    Raises
    ------
    UserError
        As `arrive`, or if no scheme can run this.
    """
    results, left_out = [], {}
    for asked_one in asked_of(EXPERIMENT, spec, schemes, options or {}):
        one = asked_one.spec
        assert isinstance(one, InferSpec)
        try:
            results.append(arrive(one, asked, allow_code=allow_code))
        except LayerRefusedError as error:
            left_out[named(one.of_prompts, one.scheme)] = str(error)
        if progress is not None:
            progress()
    if not results:
        first = next(iter(left_out))
        message = f"no scheme can run this; {first}: {left_out[first]}"
        raise UserError(message)
    return ArrivedComparison(results=results, left_out=left_out)


def requests_of(spec: InferSpec, asked: ArrivalSpec) -> Requests:
    """Give the requests that arrive.

    Raises
    ------
    UserError
        If `arrivals` is no rate and no file, or lengths are given twice.
    """
    rate = _rate(asked.arrivals)
    is_given = asked.prompts is not None or asked.outputs is not None
    if rate is None:
        if is_given or spec.lengths == "trace":
            message = f"{asked.arrivals}: its requests have lengths of their own; give no others"
            raise UserError(message)
        return request_files.read(asked.arrivals, most=asked.count)
    count, burstiness, seed = asked.count, asked.burstiness, asked.arrival_seed
    if spec.lengths == "trace" and not is_given:
        import tracegen

        if spec.trace is None:
            message = "lengths of a trace were asked for, but no trace was given"
            raise UserError(message)
        trace = tracegen.load(spec.trace)
        found = drawn_from(trace, count, 1.0, burstiness=burstiness, seed=seed)
    else:
        prompts = lengths(asked.prompts or str(spec.prompt))
        outputs = lengths(asked.outputs or str(spec.output + 1))
        found = drawn(count, 1.0, prompts, outputs, burstiness=burstiness, seed=seed)
    # A search stretches gaps, which requests that come at once would not have.
    return found if asked.search else found.at_rate(rate)


def _rate(text: str) -> float | None:
    """Requests per second, if the text is a number."""
    if text == "once":
        return float("inf")
    try:
        return float(text)
    except ValueError:
        return None


def _pools(setup: Setup, asked: ArrivalSpec, longest: int) -> tuple[tuple[Pool, Pool], list[Cache]]:
    """Pools of prefill and of decoding, which are the same where the same GPUs do both."""
    spec, queries = setup.spec, setup.drafts.count + 1
    phases: dict[Phase, Side] = {"prefill": setup.prefill, "decode": setup.decode}
    pools: list[Pool] = []
    caches: list[Cache] = []
    for phase, side in phases.items():
        if phase == "decode" and not setup.is_apart:
            pools.append(pools[0])
            break
        prompts = spec.chunk
        if asked.policy == "whole-prompts":
            prompts = max(prompts, -(-longest // side.tp))
        times = dataclasses.replace(
            setup.times[phase], most={True: prompts, False: spec.requests * queries}
        )
        used = [times.prefill, times.decode]
        if setup.is_apart:
            used = used[:1] if phase == "prefill" else used[1:]
        for layers in used:
            most = times.most[layers is times.prefill]
            layers.near(most, layers.positions, most)
        room = room_of(
            setup.shape, [one.memory for one in used if one.memory is not None],
            int(side.system.hbm.num_bytes * asked.memory), side.tp, setup.precision.gemm,
            int(setup.drafts.count > 0),
        )  # fmt: skip
        if room.positions < asked.block:
            message = (
                f"{setup.shape.name} on {side.num_gpus} GPUs of {side.system.name}, {phase}: "
                f"{room.weights / GB:,.1f} GB of weights and {room.iteration / GB:,.1f} GB of "
                f"buffers leave no cache in {room.capacity / GB:,.1f} GB of a GPU"
            )
            raise UserError(message)
        rules = Batching(
            policy=asked.policy, cache_tokens=room.positions, block=asked.block,
            max_batched_tokens=spec.chunk * side.tp, max_requests=spec.requests * side.tp,
            reserve=asked.reserve,
        )  # fmt: skip
        pools.append(Pool(times, rules, side.num_gpus))
        caches.append(
            Cache(
                phase=phase, workers=side.workers, positions=room.positions,
                position_bytes=room.position,
            )
        )  # fmt: skip
    return (pools[0], pools[1]), caches
