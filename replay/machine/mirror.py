"""Messages of nodes that are not replayed in full, taken from those of the sampled nodes.

Only the sampled nodes' ranks have all their work (`replay.work.thinned`); the others have too
little, and would send too early. In a group of nodes that all do alike, node n sends node s what
node s sends node 2 s - n, which lies as far on the other side, and at the same time. So

- a message into a sampled node leaves the other node when its *counterpart* leaves: the message of
  the sampled node, from the GPU of the same index to that of the same index, over as many nodes.
  From there it takes its own way into the sampled node, with its own bytes;
- a message out of a sampled node arrives when the message arrives whose counterpart it is;
- a message between two other nodes leaves and arrives as its counterpart does, and has no tasks.

Where one kind of message has more than its counterparts, the k-th of n is taken for that of m which
lies at the same place in their order, k m / n. Where a pair of GPUs has none, one of the same GPU
over as many nodes stands in, or over any. Where there is none at all, a message is sent as what is
left of its rank says, and counts as one without a counterpart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.work.ragged import places

if TYPE_CHECKING:
    from replay.machine.domains import Domains
    from replay.machine.resources import Ints
    from replay.work.node_sample import NodeSample


class Mirrored(NamedTuple):
    """What stands for each of some messages.

    Attributes
    ----------
    leaves, arrives
        (message,): the message that leaves, or arrives, in its place; itself where it has tasks of
        its own on that part of its way.
    """

    leaves: Ints
    arrives: Ints


class Mirror:
    """Counterparts among the messages of one call.

    Parameters
    ----------
    domains
        Which rank is on which node; all nodes are full.
    sample
        The nodes whose ranks are replayed in full.

    Attributes
    ----------
    num_into_sample, num_lost
        Messages from other nodes into the sampled ones, and those of them without a counterpart.
    """

    def __init__(self, domains: Domains, sample: NodeSample) -> None:
        self.num_into_sample = self.num_lost = 0
        self._domains = domains
        self._sampled = np.zeros(domains.num, np.bool_)
        self._sampled[list(sample.nodes)] = True
        # A sampled node stands for every node: itself, or one in turn.
        self._stands_for = np.array(sample.nodes)[np.arange(domains.num) % len(sample.nodes)]
        self._stands_for[self._sampled] = np.flatnonzero(self._sampled)

    def of_all_nodes(self, sampled: Ints) -> Ints:
        """Of service for the sampled nodes' messages, that for all nodes': rounded up."""
        return -(-sampled * self._domains.num // int(self._sampled.sum()))

    def __call__(self, src: Ints, dst: Ints) -> Mirrored:
        """Counterparts of messages between nodes, in the order in which they are sent.

        Parameters
        ----------
        src, dst
            (message,) ranks on different nodes.
        """
        domains, num = self._domains, self._domains.num
        away, back = domains.of(src), domains.of(dst)
        over = (back - away) % num
        from_sampled, to_sampled = self._sampled[away], self._sampled[back]
        leaves, arrives = np.arange(len(src)), np.arange(len(src))
        own, other = domains.local(src), domains.local(dst)

        # Who leaves in its place: a message of the node that it goes to, or of one in turn.
        wants, has = np.flatnonzero(~from_sampled), np.flatnonzero(from_sampled)
        stand_in = np.where(to_sampled, back, self._stands_for[away])
        found = _found(
            _keys((stand_in, own, over, other), wants, num, domains.size),
            _keys((away, own, over, other), has, num, domains.size),
            (away * num + back)[wants],
        )
        known = found >= 0
        leaves[wants[known]] = has[found[known]]
        self.num_into_sample += int(to_sampled[wants].sum())
        self.num_lost += int(to_sampled[wants[~known]].sum())

        # Who arrives in its place: a message into the node that it comes from.
        wants, has = np.flatnonzero(from_sampled & ~to_sampled), np.flatnonzero(to_sampled)
        found = _found(
            _keys((away, other, over, own), wants, num, domains.size),
            _keys((back, other, over, own), has, num, domains.size),
            (away * num + back)[wants],
        )
        known = found >= 0
        arrives[wants[known]] = has[found[known]]
        between = np.flatnonzero(~from_sampled & ~to_sampled)
        arrives[between] = arrives[leaves[between]]
        return Mirrored(leaves, arrives)


def _keys(parts: tuple[Ints, Ints, Ints, Ints], chosen: Ints, num: int, size: int) -> list[Ints]:
    """(message,) numbers that counterparts share: all four parts, the first three, the first two.

    The parts are a node, an index in it, a distance between nodes, and another index.
    """
    node, index, over, other = (part[chosen] for part in parts)
    first = node * size + index
    third = first * num + over
    return [third * size + other, third, first]


def _found(wanted: list[Ints], given: list[Ints], ends: Ints) -> Ints:
    """(wanted,): place among the given ones of the counterpart of each, -1 where there is none.

    Those between the same nodes, by the number of these `ends` (wanted,), share out the given ones.
    """
    found = np.full(len(wanted[0]), -1)
    for keys, among in zip(wanted, given, strict=True):
        left = np.flatnonzero(found < 0)
        if not len(left):
            break
        order = np.argsort(among, kind="stable")
        ordered = among[order]
        begin = np.searchsorted(ordered, keys[left], "left")
        count = np.searchsorted(ordered, keys[left], "right") - begin
        place, of = _places(keys[left] * (int(ends.max()) + 1) + ends[left])
        has = count > 0
        # The middle of the k-th of n parts, as a place among the counterparts.
        at = begin + (2 * place + 1) * count // (2 * of)
        found[left[has]] = order[at[has]]
    return found


def _places(keys: Ints) -> tuple[Ints, Ints]:
    """(entry,): its place among those with the same key, and how many they are."""
    order = np.argsort(keys, kind="stable")
    _, of, counts = np.unique(keys, return_inverse=True, return_counts=True)
    place = np.empty(len(keys), np.int64)
    place[order] = places(counts)
    return place, counts[of]
