"""The definition of a scheme of expert parallelism.

It has one method that adds the tasks of one layer to a graph, beside what
`replay.schemes.base.AnyScheme` has. ``replay/schemes/ADDING.md`` says how to add one.
"""

from __future__ import annotations

from abc import abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from replay.errors import RefusedError
from replay.model.compute.row_tiles import padded_rows
from replay.model.machine.domains import Domains
from replay.model.work.capacity import as_it_is
from replay.model.work.precision import FP4_TYPES
from replay.schemes.base import AnyScheme
from replay.schemes.ep.facts import ALL_TYPES, BOTH_PASSES
from replay.schemes.ep.memory import intermediates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmodel import System
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.resources import Discipline
    from replay.model.work.capacity import CarriedLayer
    from replay.model.work.layer import LayerWork
    from replay.model.work.stacks import ListOption
    from replay.schemes.ep.facts import Buffer


# Counters of rows that a scheme carries out beside those of its layer, and of those it does not.
PADDED, DROPPED = "rows of padding", "dropped (token, expert)"


class LayerRefusedError(RefusedError):
    """A scheme has no code for a layer, which others may have; see `Scheme.refuses`."""


class Scheme(AnyScheme):
    """One way to carry out dispatch, expert computation and combine.

    Attributes
    ----------
    traffic
        Class of the payload traffic, a key of `replay.schemes.ep.traffic.TRAFFIC`.
    network
        How its rows get from one NVLink domain to another, a key of
        `replay.schemes.ep.traffic.NETWORK`; empty if it knows one domain only.
    overlap
        What runs at the same time: "none", or the part of the layer.
    phases_separated
        Whether a barrier over all ranks lies between dispatch and combine, so that the busiest
        ports of the two phases bound the layer one after the other.
    gemm_types, dispatch_types
        Number types that the experts' GEMMs, and rows on their way to the experts, may have.
    weight_types
        Types of weights that the experts' GEMMs take beside rows of another type.
    combine_types
        Number types that rows may have on their way back. FP8 takes a scheme that moves rows as
        they are and has a kernel at the owner that adds them up.
    passes
        Passes that its code has: "forward", "backward".
    puts_off_weights
        Whether a backward pass of it can leave the gradients of the experts' weights for later.
    most_ranks, most_topk
        Ranks, and experts of a token, that its code takes at most; None for any number.
    even_experts
        Whether all ranks have equally many experts.
    full_nodes
        Reason why several nodes have to be full of its ranks; empty if they need not be.
    validity
        Set-ups that its source was written for or measured on, where those are not any.
    layout
        Layout of the experts' rows in memory, of `replay.model.compute.row_tiles.LAYOUTS`.
    fuses_activation
        Whether the first GEMM writes what the second reads.
    keeps_results
        Whether the second GEMM writes to the memory of its own GPU.
    unpadded
        Options with which no tile is padded; the contract counts multiplied rows with them.
    wins, loses
        Layers where it is ahead of schemes near to it, and behind, each with the reason.
    spares
        Reasons why a layer of it has no work of a cost, by names of `replay.report.scheme_costs`.
    unacknowledged
        Reasons why stored rows of a phase, "dispatch" or "combine", are used before they have been
        acknowledged to who stored them, by phase: flags in the data, hardware that counts.
    """

    kind = "ep"
    traffic: str
    network: str = ""
    overlap: str = "none"
    phases_separated: bool = True
    gemm_types: frozenset[str] = ALL_TYPES
    dispatch_types: frozenset[str] = ALL_TYPES
    weight_types: frozenset[str] = frozenset()
    combine_types: frozenset[str] = frozenset({"bf16", "fp32"})
    passes: frozenset[str] = BOTH_PASSES
    puts_off_weights: bool = False
    most_ranks: int | None = None
    most_topk: int | None = None
    even_experts: bool = False
    full_nodes: str = ""
    validity: str = ""
    layout: str = "plain"
    fuses_activation: bool = False
    keeps_results: bool = True
    unpadded: Mapping[str, Any] = MappingProxyType({})
    wins: str = ""
    loses: str = ""
    spares: Mapping[str, str] = MappingProxyType({})
    unacknowledged: Mapping[str, str] = MappingProxyType({})

    @property
    def list_options(self) -> Mapping[str, ListOption]:
        """Options of a kernel list that the scheme decides, where the list knows it."""
        return {}

    @property
    def uplinks(self) -> Discipline:
        """Discipline by which a GPU's uplink chooses a message; see `GraphBuilder.resource`."""
        return "voq"

    def refuses(self, work: LayerWork) -> str:
        """Say why the scheme cannot run a layer, if it cannot.

        A scheme states by attributes what its code has. One that has more reasons overrides this
        and asks it first.

        Parameters
        ----------
        work
            See `build`.

        Returns
        -------
        The reason, as in "its kernels take 1024 tokens per rank at most, a rank has 4096"; empty
        for a layer that can be built.
        """
        if work.is_backward and "backward" not in self.passes:
            return "its kernels have no backward pass"
        if not work.is_backward and "forward" not in self.passes:
            return "it is of the backward pass alone"
        if work.puts_off_weights and not self.puts_off_weights:
            return "its weight gradients are part of its kernels and cannot be put off"
        types, topk = work.precision, work.expert_ids.shape[1]
        for what, given, possible in (
            ("GEMMs", types.gemm, self.gemm_types),
            ("rows to the experts", types.dispatch, self.dispatch_types),
            ("rows back", types.combine, self.combine_types),
        ):
            if given not in possible:
                return f"its {what} are {' or '.join(sorted(possible))}, not {given}"
        if types.weights != types.gemm and types.weights not in self.weight_types:
            fits = " or ".join([f"{types.gemm} too", *sorted(self.weight_types)])
            return f"weights of its {types.gemm} GEMMs are {fits}, not {types.weights}"
        if work.is_backward and types.weights in FP4_TYPES:
            return f"{types.weights} weights are for the forward pass alone"
        if self.most_ranks is not None and work.num_ranks > self.most_ranks:
            return f"its code takes {self.most_ranks} ranks at most, not {work.num_ranks}"
        if self.most_topk is not None and topk > self.most_topk:
            return f"its kernels take {self.most_topk} experts per token at most, not {topk}"
        if self.even_experts and len({len(own) for own in work.experts_of_rank}) > 1:
            return "its ranks have equally many experts"
        return ""

    def refuses_on(self, work: LayerWork, system: System) -> str:
        """Say why the scheme cannot run a layer on a system, if `refuses` does not say so.

        A scheme overrides it whose code wants ranks or domains of certain sizes.

        Returns
        -------
        The reason, as in "its ranks lie on nodes of 8 GPUs, a node has 4"; empty for none.
        """
        if not self.full_nodes or Domains(system.fabric, work.num_ranks).even:
            return ""
        size = system.fabric.gpus_per_domain
        return f"{work.num_ranks} ranks do not fill nodes of {size}: {self.full_nodes}"

    def carries(self, work: LayerWork) -> CarriedLayer:
        """The layer as it is carried out: with rows of padding that travel, without dropped ones.

        The contract counts rows on ports, and multiplied rows, of what is carried out. Each of its
        rows must be one of the layer or noted as padding; missing rows are noted as dropped.

        Returns
        -------
        The layer itself, unless the scheme has one capacity for all experts or the like.
        """
        return as_it_is(work)

    def carries_on(self, work: LayerWork, system: System) -> CarriedLayer:
        """Layer that is carried out, see `carries`; overridden where the rates of a system matter."""
        return self.carries(work)

    def communication_sms(self, system: System) -> int | None:
        """SMs per GPU that do nothing but communicate, while a kernel of the scheme does.

        Returns
        -------
        0 where no SM moves rows, or those that do also compute; all that a GPU has where a kernel
        takes as many as it finds work for; None where nothing is stated. The contract compares it
        with the SMs that a layer's tasks hold.
        """
        return None

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Device memory that the scheme allocates for a layer.

        It is beside tokens, weights and sums, and beside `intermediates`.

        Returns
        -------
        Nothing where nothing is stated.
        """
        return ()

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Device memory of what the experts write, see `replay.schemes.ep.memory`."""
        return intermediates(
            work,
            padded_rows(work, self.layout),
            fuses_activation=self.fuses_activation,
            keeps_results=self.keeps_results,
        )

    @abstractmethod
    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add the tasks of one layer.

        The contract (``moereplay schemes check NAME``, `replay.schemes.contract`) demands of them:

        - Rank r does nothing for the layer before ``start[r]``.
        - Every token that has an expert is followed twice. ``machine.notes.follow("sent", token,
          task)`` names the task in which it leaves its rank; ``machine.notes.follow("combined",
          token, task)`` names the task after which it is combined.
        - Tasks of the experts' GEMMs have the kinds `Kind.GEMM1` and `Kind.GEMM2` and carry the
          number of their expert as ``tag``. Together they multiply exactly the rows that are routed
          to the expert, on the rank that has it, and none runs before its rows are there. Tasks
          of `replay.model.compute.experts` are like this.
        - Rows are used when the peer that stored them knows that they are there, and has then told of
          them: `Sync.barrier` and `Sync.flag` with ``stored="each"``. `unacknowledged` says why
          where that is not so.
        - Shared experts that the layer has beside its dispatch (`LayerWork.shared`) run on the SMs
          of their rank, as `replay.model.compute.shared_experts` does it.
        - The payload on every port is that of the scheme's class of `traffic`, and of its class of
          `network` where ranks lie in several NVLink domains, to the byte.
          Payload is the rows alone; indices, weights, counts and flags are ``meta_bytes``, or
          messages without payload.
        - What is returned comes after everything that the ranks wait for, and after everything
          that their SMs do: a later layer begins behind it, with kernels that may have all SMs. No
          task is on an SM of a rank before that rank's kernel has begun.
        - The same work gives the same tasks, whenever it is called.

        Parameters
        ----------
        work
            Routing, placement, shape and precision.
        machine
            Resources and transfers; its `graph` receives the tasks.
        start
            (rank,) tasks: rank r's tokens are routed and in its memory.

        Returns
        -------
        (rank,) tasks: rank r's tokens are combined, and its SMs have done what they do for others.

        Raises
        ------
        UserError
            If the options do not fit the machine.
        """

    def describe(self, system: System | None = None, trials: Sequence[Any] = ()) -> dict[str, Any]:
        """Describe the scheme with its class of traffic."""
        return {**super().describe(system, trials), "traffic": self.traffic}
