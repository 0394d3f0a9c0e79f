"""SMs: who holds how many of them, and the queues that their tasks wait in.

SMs are given to kernels by name. What runs at the same time is declared together (`Sms.split`), and
its sum may not exceed what a GPU has; kernels that follow one another may each have all SMs. That
they do follow one another is in who waits for whom, which the ledger does not see: the contract of
schemes adds up the SMs that are in use at every instant (`replay.schemes.contract.sms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from replay.errors import UserError
from replay.model.machine.resources import ResourceClass

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.resources import Discipline, Resources


class Sms:
    """The SMs of every GPU.

    Parameters
    ----------
    count
        SMs per GPU.
    set_aside
        SMs per GPU that kernels of a communication stream have for themselves, from the first to
        the last layer.

    Attributes
    ----------
    compute
        SMs that a kernel of the other stream may have; all if none are set aside.
    ledger
        Everything that was held, in the order in which it was asked for.
    queues
        Resources that were made, with the name of the SMs that they are queues of: (rank,) for
        SMs that share a queue, (rank, SM, ...) for SMs that each have queues of their own.
    groups
        Group of each entry of `queues`; entries of one group are never in use at once, such as
        those of layers of which each takes another number of SMs.
    """

    def __init__(self, resources: Resources, count: int, set_aside: int = 0) -> None:
        self._resources = resources
        self.count = count
        self.compute = count - set_aside
        self.ledger: list[Split] = []
        self.queues: list[tuple[str, Ints]] = []
        self.groups: list[str] = []

    @property
    def resources(self) -> Ints:
        """All resources that are queues of SMs."""
        nothing = np.zeros(0, np.int64)
        return np.concatenate([nothing, *(queues.ravel() for _, queues in self.queues)])

    def split(self, owner: str, shares: Mapping[str, int], *, rest: str = "") -> Split:
        """Declare SMs that are held at the same time.

        Parameters
        ----------
        owner
            For messages, such as ``"scheme 'comet'"``.
        shares
            SMs by the option that says so.
        rest
            What at least one further SM must do, such as ``"compute"``; nothing if empty.

        Raises
        ------
        UserError
            If the GPU has fewer.
        """
        if sum(shares.values()) + bool(rest) > self.count:
            names = [f"{name}={number}" for name, number in shares.items()]
            listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
            one = len(names) == 1
            raise self.too_many(
                f"option{'' if one else 's'} {listed} of {owner} take{'s' if one else ''}",
                sum(shares.values()),
                f", and some must {rest}" if rest else "",
            )
        split = Split(self, owner, self.count - sum(shares.values()))
        self.ledger.append(split)
        return split

    def for_kernels(self) -> Ints:
        """Give the SMs that compute to kernels that follow one another: (rank,) resources."""
        return self.pool("sm", self.compute)

    def pool(self, group: str, num_sms: int) -> Ints:
        """Give SMs to a kernel that runs alone; see `Split.pool`."""
        return self.split(group, {}).pool(group, num_sms)

    def channels(self, group: str, num_channels: int) -> Ints:
        """Give SMs to a kernel that runs alone; see `Split.channels`."""
        return self.split(group, {}).channels(group, num_channels)

    def units(self, group: str, per_rank: int, discipline: Discipline) -> Ints:
        """Units of every GPU that decide who is next, in no time: (rank, unit) resources."""
        kind, of = "unit that decides", ResourceClass.ARBITER
        return self.many(kind, of, group, (per_rank,), discipline)

    # ---- for splits ------------------------------------------------------------------------------

    def too_many(self, who_takes: str, num_sms: int, why: str = "") -> UserError:
        """Error for whoever takes more SMs than there are."""
        taken, available = (f"{n} SM{'' if n == 1 else 's'}" for n in (num_sms, self.count))
        return UserError(f"{who_takes} {taken}; the GPU has {available}{why}")

    def one_queue(self, group: str, num_sms: int) -> Ints:
        """(rank,) resources with `num_sms` servers each."""

        def make() -> Ints:
            made = self._resources.each(group, ResourceClass.SM, kind="pool of SMs", servers=num_sms)
            self.queues.append((group, made))
            self.groups.append(group)
            return made

        return self._resources.once("pool of SMs", (group, num_sms), make)

    def many(
        self,
        kind: str,
        of: ResourceClass,
        group: str,
        sizes: tuple[int, ...],
        discipline: Discipline = "fifo",
        on: str | None = None,
    ) -> Ints:
        """(rank, *sizes) resources, named by their place: ``group rank.index``, or ``<->peer``.

        They are queues of the SMs called `group`, or `on`.
        """
        ranks = range(self._resources.num_ranks)

        def make() -> Ints:
            ends = [""]
            for size, mark in zip(sizes, (".", "<->"), strict=False):
                ends = [f"{end}{mark}{index}" for end in ends for index in range(size)]
            names = [f"{group} {rank}{end}" for rank in ranks for end in ends]
            owners = [rank for rank in ranks for _ in ends]
            made = self._resources.several(group, of, names, owners, kind=kind, discipline=discipline).reshape(
                len(ranks), *sizes
            )
            if of == ResourceClass.SM:
                self.queues.append((on or group, made))
                self.groups.append(group)
            return made

        return self._resources.once(kind, (group, sizes), make)


class Split:
    """SMs of every GPU that are held at the same time, by name.

    The same name and number is the same SMs, in whichever layer they are asked for.

    Attributes
    ----------
    owner
        Name of who takes the SMs, for errors.
    left
        SMs that no share has.
    held
        SMs by the name under which they were asked for.
    """

    def __init__(self, sms: Sms, owner: str, left: int) -> None:
        self._sms = sms
        self.owner = owner
        self.left = left
        self.held: dict[str, int] = {}

    def pool(self, group: str, num_sms: int) -> Ints:
        """SMs that take tasks from one queue: (rank,) resources.

        Raises
        ------
        UserError
            If the GPU has fewer SMs than are held together, or the name has another number.
        """
        self._hold(group, num_sms)
        return self._sms.one_queue(group, num_sms)

    def channels(self, group: str, num_channels: int, *, on: str | None = None) -> Ints:
        """SMs that each serve their own queues: (rank, channel) resources.

        Whatever waits for buffer space does not hold up the SM's other queues, since different
        warps serve them.

        Parameters
        ----------
        on
            Name of SMs that these are further warps of.

        Raises
        ------
        UserError
            If the GPU has fewer SMs than are held together.
        """
        if on is None:
            self._hold(group, num_channels)
        sizes = (num_channels,)
        return self._sms.many("set of channels", ResourceClass.SM, group, sizes, "voq", on=on)

    def warp_lanes(
        self,
        group: str,
        num_channels: int,
        num_peers: int,
        *,
        on: str | None = None,
        discipline: Discipline = "fifo",
    ) -> Ints:
        """Warps of SMs that each serve one peer: (rank, channel, peer) resources.

        Parameters
        ----------
        on
            Name of SMs that these are further warps of.
        discipline
            ``"voq"`` where a warp goes on with what can go, and not with what came first.

        Raises
        ------
        UserError
            If the GPU has fewer SMs than are held together.
        """
        if on is None:
            self._hold(group, num_channels)
        sizes = (num_channels, num_peers)
        return self._sms.many("set of warps", ResourceClass.SM, group, sizes, discipline, on=on)

    def _hold(self, group: str, num_sms: int) -> None:
        held = self.held.get(group, num_sms)
        if held != num_sms:
            message = f"{group!r} has {held} SMs already; {num_sms} need another name"
            raise UserError(message)
        self.held[group] = num_sms
        total = sum(self.held.values())
        if total > self._sms.count:
            names = " and ".join(map(repr, self.held))
            raise self._sms.too_many(f"{names} take{'' if self.held.keys() - {group} else 's'}", total)
