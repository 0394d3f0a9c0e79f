"""The library that moves Pangu's rows: NCCL on NVIDIA's GPUs, engines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from replay.model.collectives import dma, point_to_point
from replay.model.machine.communicators import communicators, runs_nccl

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.collectives.pair_rules import PairRules
    from replay.model.collectives.point_to_point import ExchangeTasks
    from replay.model.machine.domains import Domains
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.schemes.ep.pangu.options import PanguOptions

Stream = Literal["inside", "rail"]
"""Between which GPUs: of one node, or of equal index in all nodes. Each has a communicator."""


def rules(system: System, options: PanguOptions, domains: Domains) -> dict[Stream, tuple[PairRules, int]]:
    """NCCL's rules, and the GPUs of each communicator that has several; none without NCCL."""
    if not runs_nccl(system):
        return {}
    both: tuple[Stream, ...] = ("inside", "rail")
    sizes = {stream: communicators(domains, stream).size for stream in both}
    return {
        stream: (options.rules_on(system, len(domains.gpu), stream), size) for stream, size in sizes.items() if size > 1
    }


def held_sms(system: System, options: PanguOptions, domains: Domains) -> dict[Stream, int]:
    """SMs that a kernel of each communicator holds; engines hold none."""
    found = rules(system, options, domains)
    return {stream: pair_rules.num_channels for stream, (pair_rules, _) in found.items()}


def fifo_bytes(system: System, options: PanguOptions, domains: Domains) -> dict[Stream, int]:
    """Bytes of each communicator's FIFOs on a GPU."""
    ranks_of_node: dict[Stream, int] = {"inside": domains.size, "rail": 1}
    found = rules(system, options, domains)
    return {stream: pair_rules.fifo_bytes(size, ranks_of_node[stream]) for stream, (pair_rules, size) in found.items()}


class Exchanges:
    """All-to-alls of one layer.

    Parameters
    ----------
    split
        Declares SMs that kernels hold, by the name of what gives their number.

    Attributes
    ----------
    splits
        SMs of each communicator's kernels, and those that they leave. Kernels that follow one
        another have their SMs one after the other; where parts overlap, both are held together.
    """

    def __init__(self, machine: Machine, options: PanguOptions, split: Callable[..., Split]) -> None:
        self._machine = machine
        both: tuple[Stream, ...] = ("inside", "rail")
        joined = [one for one in both if communicators(machine.domains, one).size > 1]
        self._rules = {stream: options.rules(machine, stream) for stream in joined if machine.has_nccl}
        sms = {stream: found.num_channels for stream, found in self._rules.items()}
        if options.chunks > 1:
            together = split(**sms)
        self.splits = {
            stream: together if options.chunks > 1 else split(**{stream: sms.get(stream, 0)}) for stream in both
        }

    def run(self, stream: Stream, kinds: PhaseKinds, sizes: Ints, begun: Tasks, *, payload: bool) -> ExchangeTasks:
        """Send `sizes` bytes (source, destination) in a kernel."""
        machine = self._machine
        if stream not in self._rules:
            return dma.all_to_all(machine, kinds, sizes, begun, payload=payload)
        pair_rules = self._rules[stream]
        channels = self.splits[stream].channels(f"nccl-{stream}", pair_rules.num_channels)
        return point_to_point.all_to_all(
            machine, kinds, channels, pair_rules, sizes, begun, payload=payload, group=stream
        )
