"""Kernel lists by the name of their stack: loading, choosing by options, counting.

The module is long because every field of a list's rows, parts and options is described where it is declared.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from replay.errors import UserError, quote_names, unknown, value_text
from replay.model.arrays import Counts, Ints
from replay.model.work.kernel_lists.expressions import Expression, Value, in_words
from replay.model.work.kernel_lists.sizes import NAMES, KernelSizes
from tracegen.shared.strict import StrictDocument

Pass = Literal["forward", "backward"]
ACCUMULATOR_BYTES = 4
"""Of a gradient of weights, where nothing else is said."""

Call = Literal["torch", "te", "triton", "compiled", "nccl", "library", "wait", "copy", "launch"]
"""What issues an operation, as its host cost depends on it: an operator of PyTorch; a C++ call of
Transformer Engine; a Triton kernel; a region of torch.compile; a collective of NCCL; an extension
of another library; a wait of the host; a copy between host and GPU; a launch alone, such as one
more of an operator."""

Kind = Literal["memory", "gemm", "attention", "exchange", "map", "rows", "tiny"]
"""What bounds the kernels: bytes; a product; attention; links; (row, split) pairs of an index map;
rows that are brought to other places, by parallelism; nothing but their start."""

Stream = Literal["compute", "communication", "shared", "weights"]
"""Where its kernels go: the stream of what computes; one of what moves rows; one of shared experts
beside the exchange; a second one of weights' gradients."""

Law = Literal["row map", "chunk map", "row walk", "cast twice", "strided", "atomic", "chain", "blocks"]
"""How long kernels take whose bytes do not say it: Transformer Engine's map of rows, by tokens and
experts; its map of chunks, by rows and splits; its permutes, by thread blocks and rows of each; its
casts by rows and by columns at once, by casts and values of each; values whose addresses are found
one by one, and values that are added up one by one, by kernels and values of each; loads that wait
for each other, by kernels and loads of each; blocks with an SM each, by blocks and their bytes;
FlashAttention-2 over a cache, by heads of keys of all requests and their keys together."""

Collective = Literal["all_gather", "reduce_scatter", "all_reduce"]
"""What the GPUs of a group exchange: those of tensor parallelism, or for an optimiser all."""

Group = Literal["tp", "cp"]
"""GPUs that share heads and widths, or sequences."""

Ground = Literal["source", "closed", "assumed", "measured"]
"""Whether the number of kernels is in the source, is a closed library's, is assumed, or was counted
(``launches.csv`` in ``replay/studies/validate/measurements``)."""


class ListRow(StrictDocument):
    """A row of a list, its expressions as text.

    Attributes
    ----------
    name
        The kernel, or what the host does.
    call, kind, ground, stream
        What issues it, what bounds it, how sure its number is, where its kernels go; a table gives
        the stream by the value of option `overlap`, that of what computes if it is not there.
    kernels
        Kernels of this name in a row.
    by_driver
        How many of these are copies of alike tensors, which PyTorch leaves to the driver: launched as
        kernels are, but none to a profiler.
    moves
        Bytes that they read and write in all; of collectives, of the larger of a GPU's two buffers.
    collective
        What collectives do; without it, an exchange is charged by whoever moves the rows.
    law
        Name of the law of their least time, and its two sizes. Without one, bytes alone decide.
    group
        GPUs that a collective is among.
    gemm
        Rows, columns and inner dimension of each product, if it is one.
    scores
        Of attention itself: query heads of the GPU, and widths of a head's key and value.
    flash
        Of attention over a cache by FlashAttention-2, whose second kernel sums what split keys gave:
        heads of queries and of keys of the GPU, and values of a head; the first is 0 where another
        kernel attends.
    groups
        Products of these sizes in one kernel, each of weights of its own.
    types
        Type of a product's operands, if it is not that of the layers' products.
    weights, adds
        Whether a product makes gradients of weights, which may be put off; bytes of a value of the
        gradients that it adds up in place, 0 where it writes a result of its own.
    operator, calls
        The operator of PyTorch that issues it, a name of the operators that have host costs of
        their own, and how often; without it, the host's cost is that of the call. Of a library's
        calls, also those that launch no kernel, such as memsets.
    tensors
        Tensors of device memory that are allocated for it.
    copies, waits
        Copies between host and GPU, and waits of the host for its GPU.
    events
        Calls of the host that record events and have streams wait for them.
    peers
        GPUs that it sends messages to, where the host posts each by itself.
    captured
        Whether it is in the graph that holds its part; if not, it is launched before.
    again
        Whether selective recomputation launches it again in the backward pass.
    shared
        Whether it is of shared experts, in a list that has them among the kernels of routed ones.
    when
        Condition in sizes and options under which it is there.
    source
        File and line, with the key of `KernelList.sources` before them.
    """

    name: str
    call: Call = "torch"
    kind: Kind = "memory"
    ground: Ground = "source"
    stream: Stream | dict[str, Stream] = "compute"
    kernels: int | str = 1
    by_driver: int = 0
    moves: int | str = 0
    collective: Collective | None = None
    group: Group = "tp"
    law: tuple[Law, int | str, int | str] | None = None
    gemm: tuple[int | str, int | str, int | str] | None = None
    scores: tuple[int | str, int | str, int | str] | None = None
    flash: tuple[int | str, int | str, int | str] | None = None
    groups: int | str = 1
    operator: str = ""
    calls: int | str = 1
    types: str = ""
    weights: bool = False
    adds: int | str = 0
    tensors: int | str = 0
    copies: int = 0
    waits: int = 0
    events: int | str = 0
    peers: int | str = 0
    captured: bool = True
    again: bool = False
    shared: bool = False
    when: str = "1"
    source: str


class ListPart(StrictDocument):
    """Operations of one part in one pass, in the order of their launch.

    Attributes
    ----------
    name, direction
        The part, and the pass that it belongs to.
    graph
        Scope of CUDA graphs that holds it; empty where no scope can.
    mirrored
        Whether its backward pass is not written out, but its mirror: see `mirror`.
    """

    name: str
    direction: Pass
    graph: str = ""
    mirrored: bool = False
    rows: tuple[ListRow, ...]

    def present(self, given: Mapping[str, Value]) -> Iterator[ListRow]:
        """Rows that are there with these sizes and options, in the order of the list."""
        return (row for row in self.rows if Expression(row.when).value(given))

    @property
    def mirror(self) -> ListPart:
        """Kernels of the part's gradients, in the order of the forward pass.

        A product becomes two: gradients of inputs, and of weights. Other kernels move twice the
        bytes. A gather is repeated (among `tp` GPUs for gradients of weights alone), and its
        gradients are scattered. For other collectives gradients are gathered.
        """
        rows = tuple(one for row in self.rows for one in _mirror(row))
        return self.model_copy(update={"direction": "backward", "rows": rows})


class Option(StrictDocument):
    """A setting of a stack that changes what it launches."""

    meaning: str
    default: int | bool | str
    choices: tuple[int | bool | str, ...] = (False, True)
    source: str


def _mirror(row: ListRow) -> tuple[ListRow, ...]:
    if row.gemm is not None:
        rows, columns, inner = row.gemm
        of_input = {"name": f"{row.name}, gradient of input", "gemm": (rows, inner, columns)}
        of_weight = {
            "name": f"{row.name}, gradient of weight",
            "gemm": (columns, inner, rows),
            "weights": True,
            "adds": ACCUMULATOR_BYTES,
        }
        return row.model_copy(update=of_input), row.model_copy(update=of_weight)
    if row.collective == "all_gather":
        scattered = {"name": f"{row.name}, gradients", "collective": "reduce_scatter"}
        again = {"name": f"{row.name} again", "weights": row.group == "tp"}
        return row.model_copy(update=again), row.model_copy(update=scattered)
    if row.collective is not None:
        return (row.model_copy(update={"name": "gradients gathered", "collective": "all_gather"}),)
    twice = {"name": f"{row.name}, gradients", "moves": f"2 * ({row.moves})"}
    return (row.model_copy(update=twice),)


class ListedOperation(NamedTuple):
    """A row, computed for sizes and options.

    Attributes
    ----------
    part, direction, graph
        Name, pass and scope of CUDA graphs of its part.
    kernels, moves, law, gemm, groups, calls, tensors, copies, waits, events, peers, adds
        As of `ListRow`, as numbers.
    by_driver, operator, collective, group, scores, flash, types, weights, captured, again, shared
        As of `ListRow`.
    is_routed
        Whether a product has rows of routed experts.
    """

    name: str
    part: str
    direction: Pass
    graph: str
    call: Call
    kind: Kind
    ground: Ground
    stream: Stream
    kernels: int
    moves: int
    gemm: tuple[int, int, int] | None
    tensors: int
    copies: int
    waits: int
    events: int
    peers: int
    source: str
    collective: Collective | None = None
    types: str = ""
    weights: bool = False
    adds: int = 0
    captured: bool = True
    again: bool = False
    law: tuple[Law, int, int] | None = None
    groups: int = 1
    operator: str = ""
    calls: int = 1
    is_routed: bool = False
    shared: bool = False
    group: Group = "tp"
    scores: tuple[int, int, int] | None = None
    flash: tuple[int, int, int] | None = None
    by_driver: int = 0

    @property
    def profiler_kernels(self) -> int:
        """Kernels as a profiler counts them."""
        return self.kernels - self.by_driver


class RankedOperation(NamedTuple):
    """A row, computed for GPUs with unequal work.

    Attributes
    ----------
    of
        The row; its numbers are those of the GPU with most tokens.
    moves
        (rank,): bytes that its kernels read and write.
    gemm
        (rank, 3): rows, columns and inner dimension of each product; zeros if it is none.
    """

    of: ListedOperation
    moves: Ints
    gemm: Ints

    @classmethod
    def alike(cls, of: ListedOperation, ranks: int) -> RankedOperation:
        """The row of GPUs with equal work."""
        gemm = np.array(of.gemm or (0, 0, 0), np.int64)
        return cls(of, np.full(ranks, of.moves, np.int64), np.broadcast_to(gemm, (ranks, 3)))


class EngineKernel(StrictDocument):
    """A kernel of a serving engine beside a library's own, as it is launched.

    Attributes
    ----------
    name, does
        What the engine calls it, and what it is for.
    kind
        What it counts as.
    reads, writes
        ``"pairs row"`` is a row for each (token, expert): words of
        `replay.schemes.ep.deepep.stack.StackSizes`.
    fp8
        What has to be FP8 for the kernel to be there: rows of the ``"dispatch"``, or what the
        ``"gemm"`` reads; it is always there if empty.
    scattered
        What it copies to other places row by row, in the same words.
    """

    name: str
    does: str
    kind: Literal["token_cast", "permute", "activation", "unpermute"]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    fp8: Literal["", "dispatch", "gemm"] = ""
    scattered: str = ""


class Engine(StrictDocument):
    """Kernels of an engine around those of a library that exchanges rows, and grouped GEMMs.

    Attributes
    ----------
    source
        Repository of the engine.
    layout
        Layout of the experts' rows, one of `replay.model.compute.row_tiles.LAYOUTS`.
    before_dispatch, before_experts, between, after_experts, after_combine
        Lists by place: before the layout kernel; from the dispatch to GEMM-1; between the GEMMs;
        from GEMM-2 to the combine; after it.
    """

    source: str
    layout: str
    before_dispatch: tuple[EngineKernel, ...]
    before_experts: tuple[EngineKernel, ...]
    between: tuple[EngineKernel, ...]
    after_experts: tuple[EngineKernel, ...]
    after_combine: tuple[EngineKernel, ...] = ()

    @property
    def expands(self) -> bool:
        """Tell whether each expert gets rows of its own, which are added up behind GEMM-2."""
        return self.layout != "received"


class KernelList(StrictDocument):
    """Launches of a stack.

    Attributes
    ----------
    name, title, notes
        What it is called, and what is left out.
    types
        Types of the layers' products that its rows are of.
    sources
        Repository and commit by the key that rows name them with.
    dispatcher
        The scheme that brings rows to experts in it, where no option says so.
    options
        Settings by name.
    presets
        Values of options by the name of what people run.
    parts
        Its parts, both passes.
    deepep
        What it launches around DeepEP's kernels, in place of what lies between choice and sums.
    """

    name: str
    title: str
    notes: str = ""
    types: tuple[str, ...] = ("bf16",)
    sources: dict[str, str]
    dispatcher: str = ""
    options: dict[str, Option] = Field(default_factory=dict)
    presets: dict[str, dict[str, int | bool | str]] = Field(default_factory=dict)
    parts: tuple[ListPart, ...]
    deepep: Engine | None = None

    @model_validator(mode="after")
    def _check(self) -> KernelList:
        for preset, values in self.presets.items():
            self._check_options(values, f"preset {preset!r}")
        if both := self.options.keys() & set(NAMES):
            raise UserError(f"{self.name}: {quote_names(sorted(both))} is a size and cannot be an option")
        known = {*NAMES, *self.options}
        for part in self.parts:
            for row in part.rows:
                for text in _texts_of(row):
                    if strange := Expression(text).names - known:
                        raise UserError(
                            f"{self.name}: {row.name!r} speaks of {quote_names(sorted(strange))}, which "
                            "is neither a size nor an option of it"
                        )
                if not isinstance(row.stream, str) and (
                    "overlap" not in self.options or row.stream.keys() - set(self.options["overlap"].choices)
                ):
                    raise UserError(f"{self.name}: streams of {row.name!r} are of no option 'overlap'")
                if isinstance(row.kernels, int) and not 0 <= row.by_driver <= row.kernels:
                    raise UserError(
                        f"{self.name}: {row.name!r} has {row.kernels} kernels, of which the driver cannot make "
                        f"{row.by_driver}"
                    )
                if row.source.partition(" ")[0] not in self.sources:
                    raise UserError(
                        f"{self.name}: the source of {row.name!r} begins with none of "
                        f"{quote_names(sorted(self.sources))}"
                    )
        return self

    def _check_options(self, given: Mapping[str, Value], what: str) -> None:
        for name, value in given.items():
            if name not in self.options:
                raise unknown(f"option of {self.name}", name, self.options)
            choices = self.options[name].choices
            # 1 is equal to true.
            if not any(type(value) is type(one) and value == one for one in choices):
                possible = quote_names(map(in_words, choices))
                raise UserError(f"{what}: {name} is {value_text(value)}; possible are {possible}")

    def option_values(self, preset: str = "", **given: Value) -> dict[str, Value]:
        """Every option's value: its default, then the preset's, then what is given.

        Raises
        ------
        UserError
            If there is no such preset or option, or the option cannot have that value.
        """
        if preset and preset not in self.presets:
            raise unknown(f"preset of {self.name}", preset, self.presets)
        self._check_options(given, self.name)
        defaults = {name: option.default for name, option in self.options.items()}
        return {**defaults, **self.presets.get(preset, {}), **given}

    @property
    def trains(self) -> bool:
        """Tell whether it has a backward pass."""
        return any(part.direction == "backward" for part in self.parts)

    def has(self, part: str, direction: Pass | None = None) -> bool:
        """Tell whether there is a part, in some pass or in this one."""
        return any(one.name == part and direction in (None, one.direction) for one in self.parts)

    def speaks_of(self, size: str, parts: Iterable[str] | None = None) -> bool:
        """Tell whether rows depend on a size or option: those of all parts, or of some."""
        wanted = None if parts is None else set(parts)
        return any(
            size in Expression(text).names
            for part in self.parts
            if wanted is None or part.name in wanted
            for row in part.rows
            for text in _texts_of(row)
        )

    def operations(
        self,
        sizes: KernelSizes,
        options: Mapping[str, Value],
        *,
        parts: Iterable[str] | None = None,
        direction: Pass | None = None,
    ) -> tuple[ListedOperation, ...]:
        """Launches of a part, in the order of the list.

        Parameters
        ----------
        options
            Every option's value, as of `option_values`.
        parts
            Names of the parts that are wanted; all if None.
        direction
            The pass that is wanted; both, one after the other, if None.

        Raises
        ------
        UserError
            If there is no part of a name.
        """
        every = {part.name for part in self.parts}
        wanted = every if parts is None else set(parts)
        for name in wanted - every:
            raise unknown(f"part of {self.name}", name, every)
        given: dict[str, Value] = {**sizes.by_name(), **options}
        return tuple(
            _compute(row, part, given)
            for part in self.parts
            if part.name in wanted and direction in (None, part.direction)
            for row in part.present(given)
        )

    def on_ranks(
        self,
        sizes: KernelSizes,
        options: Mapping[str, Value],
        part: str,
        direction: Pass,
        *,
        tokens: Counts,
        positions: Ints,
    ) -> tuple[RankedOperation, ...]:
        """Rows for GPUs with unequal tokens and positions, in the order of the list.

        Parameters
        ----------
        sizes, options
            As of `operations`.
        tokens, positions
            (rank,): of each GPU, in place of those of `sizes`. Conditions must not use them.
        """
        given: dict[str, Any] = {**sizes.by_name(), **options}
        most = {**given, "tokens": int(tokens.max()), "positions": int(positions.max())}
        each = {**given, "tokens": tokens, "positions": positions}

        def over(text: int | str) -> Ints:
            if isinstance(text, int):
                return np.full(len(tokens), text, np.int64)
            return Expression(text).over(each, len(tokens))

        return tuple(
            RankedOperation(
                _compute(row, of, most),
                over(row.moves),
                np.stack([over(text) for text in row.gemm or (0, 0, 0)], axis=1),
            )
            for of in self.parts
            if of.name == part and of.direction == direction
            for row in of.present(most)
        )


def _texts_of(row: ListRow) -> Iterable[str]:
    yield row.when
    _, *over = row.law or ("",)
    for value in (
        row.kernels,
        row.moves,
        row.tensors,
        row.events,
        row.peers,
        row.adds,
        row.groups,
        row.calls,
        *over,
        *(row.gemm or ()),
        *(row.scores or ()),
        *(row.flash or ()),
    ):
        yield str(value)


def _compute(row: ListRow, part: ListPart, given: Mapping[str, Value]) -> ListedOperation:
    def number(value: int | str) -> int:
        found = value if isinstance(value, int) else Expression(value).value(given)
        if not isinstance(found, int) or found < 0:
            raise UserError(f"{row.name!r}: {value!r} comes to {found!r}, not to a number from 0 on")
        return int(found)

    m, n, k = row.gemm or (0, 0, 0)
    heads, key, of_value = row.scores or (0, 0, 0)
    queries, keys, width = row.flash or (0, 0, 0)
    law = (row.law[0], number(row.law[1]), number(row.law[2])) if row.law else None
    names = [Expression(one).names if isinstance(one, str) else frozenset[str]() for one in (m, n, k)]
    stream = row.stream
    if not isinstance(stream, str):
        stream = stream.get(str(given["overlap"]), "compute")
    return ListedOperation(
        name=row.name,
        part=part.name,
        direction=part.direction,
        graph=part.graph,
        call=row.call,
        kind=row.kind,
        ground=row.ground,
        stream=stream,
        kernels=number(row.kernels),
        moves=number(row.moves),
        gemm=(number(m), number(n), number(k)) if row.gemm else None,
        tensors=number(row.tensors),
        copies=row.copies,
        waits=row.waits,
        events=number(row.events),
        peers=number(row.peers),
        source=row.source,
        collective=row.collective,
        types=row.types,
        weights=row.weights,
        adds=number(row.adds),
        captured=row.captured,
        again=row.again,
        law=law,
        groups=number(row.groups),
        operator=row.operator,
        calls=number(row.calls),
        is_routed=any("rows" in one for one in names),
        shared=row.shared,
        group=row.group,
        scores=(number(heads), number(key), number(of_value)) if row.scores else None,
        flash=(number(queries), number(keys), number(width)) if number(queries) else None,
        by_driver=row.by_driver,
    )


def names() -> tuple[str, ...]:
    """Stacks that there are lists of, sorted."""
    return tuple(sorted(_texts()))


@functools.cache
def load(name: str) -> KernelList:
    """Give the list of a stack.

    Raises
    ------
    UserError
        If there is none, or a row of it makes no sense.
    """
    if name not in _texts():
        raise unknown("stack", name, names())
    found = KernelList(name=name, **_freeze(tomllib.loads(_texts()[name])))
    parts = (*found.parts, *(part.mirror for part in found.parts if part.mirrored))
    return found.model_copy(update={"parts": parts})


def _freeze(document: Any) -> Any:
    """The same with tuples in place of lists, as records have them."""
    if isinstance(document, dict):
        return {key: _freeze(value) for key, value in document.items()}
    return tuple(map(_freeze, document)) if isinstance(document, list) else document


@functools.cache
def _texts() -> dict[str, str]:
    """Text of every shipped file by name."""
    folder = resources.files(__package__)
    files = (entry for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in files}
