"""The definition of a scheme.

A scheme is an object with a name, a summary, its source, its assumptions, the capabilities that it
needs, a frozen dataclass of options, and one method that adds the tasks of one layer to a graph. It
has no clock, no randomness and does no I/O. ``replay/schemes/ADDING.md`` says how to add one.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from replay.errors import RefusedError
from replay.model.compute.row_tiles import padded_rows
from replay.model.work.capacity import as_it_is
from replay.schemes.ep.facts import ALL_TYPES, BOTH_PASSES, lacking
from replay.schemes.ep.memory import intermediates
from replay.schemes.ep.software import TYPICAL, Listed, Outline
from replay.schemes.options import Options, checked, converted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmodel import System
    from replay.model.machine.machine import Ints, Machine
    from replay.model.machine.resources import Discipline
    from replay.model.work.capacity import Carried
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.facts import Buffer


# Counters of rows that a scheme carries out beside those of its layer, and of those it does not.
PADDED, DROPPED = "rows of padding", "dropped (token, expert)"


class LayerRefusedError(RefusedError):
    """A scheme has no code for a layer, which others may have; see `Scheme.refuses`."""


class Scheme(ABC):
    """One way to carry out dispatch, expert computation and combine.

    The attributes are set in the class or, where one class has several variants, by its
    ``__init__``.

    Parameters
    ----------
    options
        Options of the scheme's own class; None takes the defaults.

    Attributes
    ----------
    name
        Name by which the scheme is asked for.
    summary
        What the scheme does, in at most 70 characters.
    source
        Paper and section, or repository and file, that the model follows.
    traffic
        Class of the payload traffic, a key of `replay.schemes.ep.traffic.TRAFFIC`.
    network
        How its rows get from one NVLink domain to another, a key of
        `replay.schemes.ep.traffic.NETWORK`; empty if it knows one domain only.
    assumes
        What the model takes for granted where its source leaves something open.
    overlap
        What runs at the same time: "none", or the part of the layer.
    needs
        Capabilities of a system without which the scheme cannot run.
    platform
        What its code is written for, "cuda" or "cann"; empty for any, such as a definition.
    proposes
        Capabilities that the scheme adds to a system that lacks them: hardware that is proposed.
    phases_separated
        Whether a barrier over all ranks lies between dispatch and combine, so that the busiest
        ports of the two phases bound the layer one after the other.
    candidates
        Values of options among which `replay.chains.tuning` may choose, such as splits of the SMs.
    tuned_by_default
        Whether what the scheme models chooses among them by itself, since it profiles them.
    gemm_types, dispatch_types
        Number types that the experts' GEMMs, and rows on their way to the experts, may have.
    combine_types
        Number types that rows may have on their way back. FP8 takes a scheme that moves rows as
        they are and has a kernel at the owner that adds them up.
    passes
        Passes that its code has: "forward", "backward".
    puts_off_weights
        Whether a backward pass of it can leave the gradients of the experts' weights for later.
    most_ranks
        Ranks that its code takes at most; None for any number.
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
    options
        Values of the options.

    Raises
    ------
    UserError
        If the value of an option is not possible.
    """

    name: str
    summary: str
    source: str
    traffic: str
    network: str = ""
    assumes: str = ""
    overlap: str = "none"
    needs: frozenset[str] = frozenset()
    platform: str = "cuda"
    proposes: frozenset[str] = frozenset()
    phases_separated: bool = True
    candidates: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    tuned_by_default: bool = False
    gemm_types: frozenset[str] = ALL_TYPES
    dispatch_types: frozenset[str] = ALL_TYPES
    combine_types: frozenset[str] = frozenset({"bf16", "fp32"})
    passes: frozenset[str] = BOTH_PASSES
    puts_off_weights: bool = False
    most_ranks: int | None = None
    validity: str = ""
    layout: str = "plain"
    fuses_activation: bool = False
    keeps_results: bool = True
    unpadded: Mapping[str, Any] = MappingProxyType({})
    options: Any = Options()
    code: str = ""
    """SHA-256 of the source of a scheme from outside; empty for one of moereplay's own."""
    origin: str = ""
    """``path/to/file.py:Name`` of a scheme from a file; empty for any other."""

    def __init__(self, options: Options | None = None) -> None:
        if options is not None:
            self.options = options
        checked(self.name, self.options)

    @property
    def uplinks(self) -> Discipline:
        """Discipline by which a GPU's uplink chooses a message; see `GraphBuilder.resource`."""
        return "voq"

    def lacks(self, system: System) -> frozenset[str]:
        """Capabilities that it needs and a system does not have, its platform included."""
        has = {capability.value for capability in system.capabilities}
        return frozenset({self.platform} - {""} | self.needs) - has

    def is_tuned(self, asked: bool | None) -> bool:
        """Whether some of its options are chosen by replay.

        Parameters
        ----------
        asked
            Whether that is asked for; None leaves it to what the scheme models.
        """
        return bool(self.candidates) and (self.tuned_by_default if asked is None else asked)

    def refuses(self, work: LayerWork) -> str:
        """Say why the scheme cannot run a layer, if it cannot.

        A scheme that has more reasons than its facts overrides it and asks this one first.

        Parameters
        ----------
        work
            See `build`.

        Returns
        -------
        The reason, as in "its kernels take 1024 tokens per rank at most, a rank has 4096"; empty
        for a layer that can be built.
        """
        return lacking(self, work)

    def refuses_on(self, work: LayerWork, system: System) -> str:
        """Say why the scheme cannot run a layer on a system, if `refuses` does not say so.

        A scheme overrides it whose code wants ranks or domains of certain sizes.

        Returns
        -------
        The reason, as in "its ranks lie on nodes of 8 GPUs, a node has 4"; empty for none.
        """
        return ""

    def carries(self, work: LayerWork) -> Carried:
        """The layer as it is carried out: with rows of padding that travel, without dropped ones.

        What the contract counts - rows on the ports, rows that are multiplied - it counts of this,
        and that each of its rows is one of the layer, or is noted as padding or as dropped.

        Returns
        -------
        The layer itself, unless the scheme has one capacity for all experts or the like.
        """
        return as_it_is(work)

    def carries_on(self, work: LayerWork, system: System) -> Carried:
        """What `carries` says, for a scheme to which the rates of a system matter."""
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
            work, padded_rows(work, self.layout),
            fuses_activation=self.fuses_activation, keeps_results=self.keeps_results,
        )  # fmt: skip

    def operations(self, layer: Outline = TYPICAL) -> tuple[Listed, ...]:
        """List the kernels of a layer and the waits of its host, in the order of the program.

        Parameters
        ----------
        layer
            What the list may depend on.

        Returns
        -------
        Nothing where a scheme states nothing, such as one from outside.
        """
        return ()

    def can_be_captured(self, layer: Outline = TYPICAL) -> bool:
        """Whether a CUDA graph can hold a whole layer: it is listed, and no host waits in it."""
        listed = self.operations(layer)
        return bool(listed) and all(one.launches for one in listed)

    @abstractmethod
    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
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
        - Shared experts that the layer has beside its dispatch (`LayerWork.shared`) run on the SMs
          of their rank, as `replay.model.compute.shared` does it.
        - The payload on every port is that of the scheme's class of `traffic`, and of its class of
          `network` where ranks lie in several NVLink domains, to the byte.
          Payload are the rows alone; indices, weights, counts and flags are ``meta_bytes``, or
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

    def describe(self) -> dict[str, Any]:
        """Name, source, assumptions and all options, for a result's provenance."""
        code = {"code": self.code} if self.code else {}
        return {
            "name": self.name,
            "source": self.source,
            "assumes": self.assumes,
            "proposes": sorted(self.proposes),
            "traffic": self.traffic,
            "options": dataclasses.asdict(self.options),
            **code,
        }

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """The scheme with some options replaced; text is converted to the option's type.

        Raises
        ------
        UserError
            If an option is unknown, or its value is not of its type or not possible.
        """
        changed = object.__new__(type(self))
        vars(changed).update(vars(self), options=converted(self.name, self.options, given))
        checked(self.name, changed.options)
        return changed
