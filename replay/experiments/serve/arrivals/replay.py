"""From settings of requests that arrive to their measures.

`moereplay infer` serves a batch that is there from the start. Here requests arrive at a rate or as
a file says, and iterations are what the engine's rules make of them. Both are timed alike.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from replay.errors import UserError
from replay.experiments.base.experiment import NOTHING, SpecInputs
from replay.experiments.base.identity import identity
from replay.experiments.base.result import SchemeDescription, SystemDescription, package_version
from replay.experiments.serve import capacity, handover, request_files
from replay.experiments.serve.arrivals.result import ArrivalPhase, ArrivalResult, Cache
from replay.experiments.serve.arrivals.spec import OF_ARRIVALS, ArrivalSpec
from replay.experiments.serve.measures import measure
from replay.experiments.serve.requests import draw_requests, lengths
from replay.experiments.serve.rules import BatchRule
from replay.experiments.serve.serving import Pool, serve
from replay.experiments.serve.setup import ServingSetup, ServingSide

if TYPE_CHECKING:
    from replay.experiments.serve.book import ServedRun
    from replay.experiments.serve.requests import Requests
    from replay.model.work.batch import Phase


@dataclass(frozen=True)
class ArrivalSetup:
    """A spec with its requests, and what their iterations are timed by.

    Attributes
    ----------
    batch
        The same model and machine with a batch of requests of mean lengths.
    """

    spec: ArrivalSpec
    requests: Requests
    batch: ServingSetup

    @classmethod
    def of(cls, spec: ArrivalSpec, given: SpecInputs[Self] = NOTHING) -> Self:
        """Follow the references of a spec.

        Raises
        ------
        UserError
            If a reference leads nowhere, or settings do not fit together.
        """
        if spec.search and spec.limits is None:
            message = "a search of the largest rate needs a limit: ttft_ms or tpot_ms"
            raise UserError(message)
        requests = requests_of(spec) if given.like is None else given.like.requests
        means = (requests.prompt.mean(), requests.output.mean() - 1)
        prompt, output = (max(round(float(mean)), 1) for mean in means)
        batch = ServingSetup.of(spec.of_batch(prompt, output), SpecInputs(allow_code=given.allow_code))
        return cls(spec.with_scheme(), requests, batch)

    @property
    def run_id(self) -> str:
        """Identity: requests enter by value, and not by the name of their file."""
        return identity(
            {
                "iterations": self.batch.run_id,
                "requests": self.requests.content_id,
                "rules": self.spec.model_dump(mode="json", include={*OF_ARRIVALS} - {"arrivals"}),
            }
        )


def carry_out(ready: ArrivalSetup) -> ArrivalResult:
    """Serve what was set up.

    Raises
    ------
    UserError
        If it does not fit into memory, or a scheme refuses a layer.
    """
    asked, requests, setup = ready.spec, ready.requests, ready.batch
    pools, caches = _pools(setup, asked, int(requests.prompt.max()))
    drafts = dataclasses.replace(setup.drafts, seed=asked.arrival_seed)
    position = caches[0].position_bytes

    def handover_ps(tokens: int) -> int:
        """Time until every GPU of a worker has sent its cache to one of the other worker."""
        sender, receiver = setup.prefill.system, setup.decode.system
        return handover.arrived_ps([0], [tokens * position], sender, receiver, 1, 1)

    def run(arriving: Requests) -> ServedRun:
        return serve(
            arriving,
            pools[0],
            decode=pools[1] if setup.is_apart else None,
            handover_ps=handover_ps,
            router=asked.router,
            drafts=drafts,
        )

    found, served = None, None
    if asked.search and asked.limits is not None:
        found = capacity.most(requests, run, asked.limits, asked.rate_tolerance)
        found, served = found.model_copy(update={"served": None}), found.served
    else:
        served = measure(run(requests), asked.limits)
    sides: dict[Phase, ServingSide] = {"prefill": setup.prefill, "decode": setup.decode}
    return ArrivalResult(
        run_id=ready.run_id,
        version=package_version(),
        spec=asked,
        model=setup.shape.sizes(),
        phases=[
            ArrivalPhase(
                phase=phase,
                scheme=SchemeDescription.of(setup.replays[phase].scheme, side.system),
                system=SystemDescription.of(side.system, side.num_gpus),
            )
            for phase, side in sides.items()
        ],
        caches=caches,
        served=served,
        capacity=found,
    )


def requests_of(spec: ArrivalSpec) -> Requests:
    """Give the requests that arrive.

    Raises
    ------
    UserError
        If `arrivals` is no rate and no file, or lengths are given twice.
    """
    rate = _rate(spec.arrivals)
    is_given = spec.prompts is not None or spec.outputs is not None
    if rate is None:
        if is_given or spec.lengths == "trace":
            message = f"{spec.arrivals}: its requests have lengths of their own; leave out prompts, outputs and lengths"
            raise UserError(message)
        return request_files.read(spec.arrivals, most=spec.count)
    if spec.lengths == "trace" and is_given:
        message = "lengths = trace: prompts and outputs are those of the trace; leave these two out, or lengths"
        raise UserError(message)
    if spec.lengths == "trace":
        import tracegen

        if spec.trace is None:
            message = "lengths = trace: no trace is given whose requests have lengths"
            raise UserError(message)
        of: Any = tracegen.load(spec.trace)
    else:
        prompts = str(spec.prompt) if spec.prompts is None else spec.prompts
        outputs = str(spec.output + 1) if spec.outputs is None else spec.outputs
        of = lengths(prompts), lengths(outputs)
    found = draw_requests(spec.count, of, burstiness=spec.burstiness, seed=spec.arrival_seed)
    # A search stretches gaps, which requests that come at once would not have.
    return found if spec.search else found.at_rate(rate)


def _rate(text: str) -> float | None:
    """Requests per second, if the text is a number."""
    if text == "once":
        return float("inf")
    try:
        return float(text)
    except ValueError:
        return None


def _pools(setup: ServingSetup, asked: ArrivalSpec, longest: int) -> tuple[tuple[Pool, Pool], list[Cache]]:
    """Pools of prefill and of decoding, which are the same where the same GPUs do both."""
    spec = setup.spec
    phases: dict[Phase, ServingSide] = {"prefill": setup.prefill, "decode": setup.decode}
    pools: list[Pool] = []
    caches: list[Cache] = []
    for phase, side in phases.items():
        if phase == "decode" and not setup.is_apart:
            pools.append(pools[0])
            break
        prompts = spec.chunk
        if asked.policy == "whole-prompts":
            prompts = max(prompts, -(-longest // side.tp))
        known = setup.times[phase].layers
        prefill = dataclasses.replace(known["prefill"], most=prompts)
        times = dataclasses.replace(setup.times[phase], layers={**known, "prefill": prefill})
        used: list[Phase] = [phase] if setup.is_apart else ["prefill", "decode"]
        capacity = int(side.system.hbm.num_bytes * asked.memory)
        room = times.room(used, capacity, int(setup.drafts.count > 0))
        where = f"{setup.shape.name} on {side.num_gpus} GPUs of {side.system.name}, {phase}"
        room.check(asked.block, where)
        rules = BatchRule(
            policy=asked.policy,
            cache_tokens=room.positions,
            block=asked.block,
            max_batched_tokens=spec.chunk * side.tp,
            max_requests=spec.requests * side.tp,
            reserve=asked.reserve,
        )
        pools.append(Pool(times, rules, side.num_gpus))
        caches.append(
            Cache(
                phase=phase,
                workers=side.workers,
                positions=room.positions,
                position_bytes=room.position,
            )
        )
    return (pools[0], pools[1]), caches
