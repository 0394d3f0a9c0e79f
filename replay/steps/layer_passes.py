"""Both passes over a layer: what each GPU does by itself, and what it does with others."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from replay.chains.pass_pairs import ORDERS, pair_times
from replay.chains.replay import Replay
from replay.measure.activity import Activity, waiting
from replay.model.compute.dense_kernels import BF16
from replay.model.machine.host import FREE_HOSTS, OUTSIDE
from replay.model.machine.kinds import Kind
from replay.model.machine.times import NO_TIME, Time
from replay.model.work.context import Context
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.ep.staged_schemes import StagedScheme
from replay.steps.stretches import Add, MetPart, MoePart, Stretch, replay_moe, replay_stretch
from replay.steps.times import PassTime, PassTimes

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.pass_pairs import PairTimes
    from replay.model.arrays import Ints
    from replay.model.compute.dense import Between
    from replay.model.compute.dense_kernels import Weights
    from replay.model.machine.host import Calls, Launch
    from replay.model.machine.machine import Machine
    from replay.schemes import Scheme
    from replay.steps.plan import Recompute
    from replay.steps.times import Cause

Pairing = Literal["dualpipe", "megatron"]
"""Order of launches of a forward pass beside a backward pass (`replay.chains.pass_pairs`)."""


class Hops(NamedTuple):
    """Passes of a stage that begin with a layer, when rows have come from another stage."""

    forward: bool = False
    backward: bool = False


NO_HOPS = Hops()


@dataclass(frozen=True)
class LayerPasses:
    """Passes over layers, replayed under one scheme.

    Attributes
    ----------
    system, scheme, launch
        As of chains.
    parts
        What is not routed experts, of a forward pass.
    context
        Tokens of each GPU, and what they attend to.
    recompute
        What of the forward pass is made again in the backward pass.
    splits_backward
        Whether the backward pass is made in two parts, too, where the scheme can.
    beside
        How a forward pass runs beside a backward pass, where it does.
    calls
        What a stack does around the scheme's kernels, see `replay.model.machine.host.Host`.
    paired
        The scheme of a forward pass beside a backward pass; None for `scheme`.
    """

    system: System
    scheme: Scheme
    launch: Launch | None
    parts: Between
    context: Context
    recompute: Recompute = "none"
    splits_backward: bool = False
    beside: Pairing | None = None
    calls: Calls | None = None
    paired: Scheme | None = None
    _pairs: dict[tuple[int, int, bool], tuple[ChainLink, ChainLink, PassTime | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _met_parts: dict[tuple[int, bytes], MetPart] = field(default_factory=dict, init=False, repr=False, compare=False)
    _put_off: dict[int, tuple[ChainLink, ChainLink]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def num_ranks(self) -> int:
        """GPUs that have tokens here."""
        return len(self.context.tokens)

    @property
    def splits(self) -> bool:
        """Tell whether gradients of weights are put off, too."""
        return self.splits_backward and isinstance(self.scheme, StagedScheme)

    # ---- layers with experts ---------------------------------------------------------------------

    def moe(
        self,
        forward: ChainLink,
        backward: ChainLink,
        *,
        is_mtp: bool = False,
        hops: Hops = NO_HOPS,
    ) -> PassTimes:
        """Replay a layer with routed experts.

        Parameters
        ----------
        forward, backward
            The layer's passes; what lies before them counts for nothing here.
        is_mtp
            Whether it is a layer of multi-token prediction.
        hops
            Which passes of a stage begin with the layer.

        Raises
        ------
        LayerRefusedError
            If the scheme has no code for one of them.
        """

        def make(link: ChainLink, weights: Weights, *, back: bool, hop: bool) -> PassTime:
            return self._moe_pass(link, weights, is_mtp=is_mtp, is_backward=back, behind_hop=hop)

        ahead = make(forward, "with", back=False, hop=hops.forward)
        again = ahead
        if self.recompute == "full" and hops.backward != hops.forward:
            again = make(forward, "with", back=False, hop=hops.backward)

        def back(link: ChainLink, weights: Weights) -> PassTime:
            if self.recompute != "full":
                return make(link, weights, back=True, hop=hops.backward)
            return behind_forward(again, make(link, weights, back=True, hop=False))

        both = self._pair(forward, backward, behind_hop=hops.forward)
        if not self.splits:
            return PassTimes(ahead, back(backward, "with"), beside=both)
        inputs = self._putting_off(backward)
        return PassTimes(
            ahead,
            back(backward, "with"),
            back(inputs, "put off"),
            self._moe_weights(inputs, is_mtp=is_mtp),
            both,
        )

    def _moe_pass(
        self,
        link: ChainLink,
        weights: Weights,
        *,
        is_mtp: bool,
        is_backward: bool,
        behind_hop: bool = False,
    ) -> PassTime:
        again = self._activation_bytes(link) if is_backward and self.recompute == "selective" else None

        def add(machine: Machine, after: Ints, *, hop: bool = False) -> dict[Cause, Ints]:
            parts = self._parts(weights, is_backward=is_backward)
            if hop:
                after = parts.hop(machine, self.context, after)
            return self._own(machine, after, parts, is_mtp=is_mtp, again=again)

        first = _met_lead(self._replay(add, NO_TIME))
        part = self._replay_moe(link, first)
        own = self._replay(add, self._through(part))
        lead, made = _met_lead(own), add
        if part.is_held_up and np.any(lead.ps > first.ps):
            # Layer after layer hosts get further ahead, as long as nothing stops them.
            part = self._replay_moe(link, lead)
        if behind_hop:
            made = functools.partial(add, hop=True)
            own = self._replay(made, self._through(part))
            if np.any(_met_lead(own).ps != lead.ps):
                part = self._replay_moe(link, _met_lead(own))
        causes = _causes(own.causes, self._all_tiled(part.causes))
        activity = own.activity + part.activity.of(self._repeat_groups(np.arange(len(part.met))))
        free = self._replay(made, FREE_HOSTS) if self._pays(own) else own
        least = self._replay_moe(link, FREE_HOSTS) if self._pays(part) else part
        causes = with_hosts(causes, _causes(free.causes, self._all_tiled(least.causes)))
        return PassTime(_sum(own.causes), self._repeat_groups(part.met), causes, activity)

    def _pays(self, part: Stretch | MoePart) -> bool:
        """Tell whether a part may take less with hosts that cost nothing."""
        return self.launch is not None and part.pays_host

    def _replay_moe(self, link: ChainLink, lead: Time) -> MoePart:
        """The MoE part, with hosts ahead by `lead` (rank,)."""
        of_ranks = Time(np.broadcast_to(lead.ps, self.num_ranks)[: link.work().num_ranks])
        return replay_moe(link, self.system, self.scheme, self.launch, of_ranks, self.calls, self._met_parts)

    def _putting_off(self, backward: ChainLink) -> ChainLink:
        """The pass without its gradients of weights."""
        if id(backward) not in self._put_off:
            work = backward.work().putting_off_weights()
            inputs = dataclasses.replace(backward, work=lambda: work)
            self._put_off[id(backward)] = backward, inputs
        return self._put_off[id(backward)][1]

    def _through(self, part: MoePart) -> Time:
        """(rank,): by how much each host is ahead of its GPU behind the MoE part."""
        return Time(self._repeat_groups(part.lead.ps + 0 * part.met))

    def _repeat_groups(self, of_ranks: Ints) -> Ints:
        """Times of one group of experts for all GPUs: the groups do alike."""
        return np.resize(of_ranks, self.num_ranks)

    def _all_tiled(self, causes: Mapping[Cause, Ints]) -> dict[Cause, Ints]:
        return {cause: self._repeat_groups(of_ranks) for cause, of_ranks in causes.items()}

    def _activation_bytes(self, link: ChainLink) -> Ints:
        """Bytes that activation functions of routed experts read and write: (rank,)."""
        work = link.work()
        rows = np.bincount(work.pair_rank, minlength=work.num_ranks)
        if work.sample is not None:
            rows = rows[work.sample.models]
        return self._repeat_groups(rows * (work.shape.gemm1_columns + work.shape.intermediate) * BF16)

    def _own(
        self, machine: Machine, after: Ints, parts: Between, *, is_mtp: bool, again: Ints | None
    ) -> dict[Cause, Ints]:
        ends: dict[Cause, Ints] = {}
        if again is not None:
            ends["experts"], after = self._again(machine, after, again).values()
        machine.host.enter(OUTSIDE, is_backward=parts.is_backward)
        found = parts.layer(machine, self.context, after, is_dense=False)
        ends["attention"], ends["dense"] = found["attention"], found["dense"]
        if is_mtp:
            ends["dense"] = parts.join_next(machine, self.context, ends["dense"])
        return ends

    def _again(self, machine: Machine, after: Ints, activated: Ints) -> dict[Cause, Ints]:
        """Make again what selective recomputation did not keep."""
        done = machine.memory_kernel(Kind.ACTIVATION, activated, after)
        dense = self.parts.again(machine, self.context, done, is_dense=False)
        return {"experts": done, "attention": dense}

    def _moe_weights(self, link: ChainLink, *, is_mtp: bool) -> PassTime:
        """Gradients of weights that were put off, of all parts."""
        scheme, work = self.scheme, link.work()
        assert isinstance(scheme, StagedScheme)

        def add(machine: Machine, after: Ints) -> dict[Cause, Ints]:
            parts = self._parts("alone", is_backward=True)
            return self._own(machine, after, parts, is_mtp=is_mtp, again=None)

        def of_experts(machine: Machine, after: Ints) -> dict[Cause, Ints]:
            machine.host.enter("experts", is_backward=True)
            return {"experts": scheme.weight_gradients(work, machine, after)}

        dense = self._stretch(add, NO_TIME)
        lead = np.broadcast_to(np.asarray(dense.lead.ps), self.num_ranks)[: work.num_ranks]
        routed = self._stretch(of_experts, Time(lead), work.num_ranks)
        of = np.arange(work.num_ranks) if work.sample is None else work.sample.models
        experts = {cause: self._repeat_groups(times[of]) for cause, times in routed.causes.items()}
        causes = _causes(dense.causes, experts)
        return alone(causes, dense.activity + routed.activity.of(self._repeat_groups(of)))

    def _pair(self, forward: ChainLink, backward: ChainLink, *, behind_hop: bool) -> PassTime | None:
        """As `_beside`, made once: what else a layer has changes nothing."""
        key = id(forward), id(backward), behind_hop
        if key not in self._pairs:
            self._pairs[key] = forward, backward, self._beside(forward, backward, behind_hop=behind_hop)
        return self._pairs[key][2]

    def _beside(self, forward: ChainLink, backward: ChainLink, *, behind_hop: bool) -> PassTime | None:
        """A forward pass beside a backward pass, from when all GPUs have come.

        A chunk's first layer lies beside another chunk's last one, and the host sends and receives
        for both, for the backward pass when it has ended. None where the scheme has no such code, and
        where the backward pass makes all of its forward pass again, which meets others on its way.
        """
        if self.beside is None or self.recompute == "full":
            return None
        ahead, back = (
            self._link(link, back=is_back, behind_hop=behind_hop)
            for link, is_back in ((forward, False), (backward, True))
        )
        try:
            pair = Replay(
                [ahead, back],
                self.system,
                self.paired or self.scheme,
                self.launch,
                ORDERS[self.beside],
                calls=self.calls,
            )
            found = pair_times(pair)
            free = found
            if self.launch is not None:
                free = pair_times(dataclasses.replace(pair, lead=FREE_HOSTS))
        except LayerRefusedError:
            return None
        sample = ahead.work().sample
        of = np.arange(len(found.ends_ps)) if sample is None else sample.models
        met = with_hosts(_causes_of(found), _causes_of(free))
        causes = {cause: self._repeat_groups(times[of]) for cause, times in met.items()}
        activity = found.activity.of(self._repeat_groups(of))
        own: Mapping[Cause, Ints] = {"attention": np.zeros(self.num_ranks, np.int64)}
        if self.recompute == "selective":
            again = self._activation_bytes(backward)

            def add(machine: Machine, after: Ints) -> dict[Cause, Ints]:
                return self._again(machine, after, again)

            before = self._stretch(add, NO_TIME)
            own, activity = before.causes, before.activity + activity
        return PassTime(_sum(own), self._repeat_groups(found.ends_ps[of]), _causes(own, causes), activity)

    def _link(self, link: ChainLink, *, back: bool, behind_hop: bool) -> ChainLink:
        """A layer's pass with what lies before it here, on the GPUs of one group of experts."""
        context = self.context[: link.work().num_ranks]
        parts = dataclasses.replace(self._parts("with", is_backward=back), behind_hop=behind_hop)
        # Dense layers are layers of their own, as if the experts were those of the first layer.
        return dataclasses.replace(link, between=parts, context=context, decoder_layer=0)

    # ---- layers without experts ------------------------------------------------------------------

    def dense(self, lead: Time = NO_TIME, hops: Hops = NO_HOPS) -> PassTimes:
        """Replay a layer without routed experts, hosts being ahead of their GPUs by `lead`."""
        ahead = self._dense_pass("with", lead, is_backward=False, behind_hop=hops.forward)

        def back(weights: Weights) -> PassTime:
            hop = hops.backward and weights != "alone"
            if self.recompute != "full" or weights == "alone":
                return self._dense_pass(weights, lead, is_backward=True, behind_hop=hop)
            again = self._dense_pass("with", lead, is_backward=False, behind_hop=hop)
            found = self._dense_pass(weights, lead, is_backward=True, behind_hop=False)
            return behind_forward(again, found)

        if not self.splits:
            return PassTimes(ahead, back("with"))
        return PassTimes(ahead, back("with"), back("put off"), back("alone"))

    def _dense_pass(self, weights: Weights, lead: Time, *, is_backward: bool, behind_hop: bool) -> PassTime:
        selective = self.recompute == "selective" and is_backward and weights != "alone"

        def add(machine: Machine, after: Ints) -> dict[Cause, Ints]:
            parts = self._parts(weights, is_backward=is_backward)
            if behind_hop:
                after = parts.hop(machine, self.context, after)
            if selective:
                after = self.parts.again(machine, self.context, after, is_dense=True)
            machine.host.enter(OUTSIDE, is_backward=is_backward)
            found = parts.layer(machine, self.context, after, is_dense=True)
            return {"attention": found["attention"], "dense": found["dense"]}

        found = self._stretch(add, lead)
        return alone(found.causes, found.activity)

    # ---- both ------------------------------------------------------------------------------------

    def _parts(self, weights: Weights, *, is_backward: bool) -> Between:
        return dataclasses.replace(self.parts, is_backward=is_backward, weights=weights)

    def _stretch(self, add: Add, lead: Time, num_ranks: int | None = None) -> Stretch:
        """A stretch, with what its hosts cost among its causes."""
        return stretch_of_hosts(lambda lead: self._replay(add, lead, num_ranks), lead, self.launch)

    def _replay(self, add: Add, lead: Time, num_ranks: int | None = None) -> Stretch:
        ranks = num_ranks or self.num_ranks
        return replay_stretch(self.system, ranks, add, self.launch, lead, self.calls)


def _met_lead(own: Stretch) -> Time:
    """(rank,): each host's lead when the last GPU has come; it goes on while its own one waits."""
    took = _sum(own.causes)
    return own.lead + Time(took.max() - took)


def alone(causes: Mapping[Cause, Ints], activity: Activity) -> PassTime:
    """A pass in which GPUs do not meet."""
    own = _sum(causes)
    return PassTime(own, np.zeros_like(own), causes, activity)


def stretch_of_hosts(replayed: Callable[[Time], Stretch], lead: Time, launch: Launch | None) -> Stretch:
    """Replay a stretch with its hosts' lead, and tell what hosts cost among its causes."""
    found = replayed(lead)
    if launch is None or not found.pays_host:
        return found
    return dataclasses.replace(found, causes=with_hosts(found.causes, replayed(FREE_HOSTS).causes))


def with_hosts(causes: Mapping[Cause, Ints], free: Mapping[Cause, Ints]) -> dict[Cause, Ints]:
    """Causes of the work where hosts cost nothing, and the time that they add as *host*.

    A GPU that is no faster then, since its neighbours are in its way, keeps its own causes.
    """
    longer = _sum(causes) - _sum(free)
    pays = longer > 0
    found: dict[Cause, Ints] = {one: np.where(pays, free[one], causes[one]) for one in causes}
    return _causes(found, {"host": np.where(pays, longer, 0)})


def behind_forward(ahead: PassTime, back: PassTime) -> PassTime:
    """A backward pass with the forward pass made again before it.

    GPUs meet in both. After they have met in the first, the rest of it and each GPU's own part of
    the second take known times. All go on when the last GPU is through with these.
    """
    activity = ahead.activity + back.activity
    if not ahead.meets:
        return alone(_causes(ahead.causes, back.causes), activity)
    ready = ahead.met + back.own
    waits = ready.max() - ready
    causes = _causes(ahead.causes, back.causes, {"exchange": waits})
    return PassTime(ahead.own, ready.max() + back.met, causes, activity + waiting(waits))


def _causes_of(pair: PairTimes) -> dict[Cause, Ints]:
    busy = pair.busy_ps
    return {
        "attention": busy["attention"],
        "dense": busy["dense"],
        "experts": busy["experts"],
        "exchange": pair.exposed_ps,
    }


def _sum(causes: Mapping[Cause, Ints]) -> Ints:
    total: Ints = np.sum(list(causes.values()), axis=0)
    return total


def _causes(one: Mapping[Cause, Ints], *others: Mapping[Cause, Ints]) -> dict[Cause, Ints]:
    total = dict(one)
    for other in others:
        for cause, times in other.items():
            total[cause] = total[cause] + times if cause in total else times
    return total
