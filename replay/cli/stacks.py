"""``moereplay stacks``: software stacks, and what one launches for a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.screen import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.model.work.kernel_lists import KernelSizes, ListedOperation
    from replay.model.work.stacks import Stack
    from tracegen.shared.display.content import Table

MODEL, SYSTEM, RANKS, TOKENS = "qwen3-30b-a3b", "dgx-h100", 8, 4096


def stacks(
    stack: Annotated[
        str | None,
        typer.Argument(
            metavar="[STACK]", help="A stack, and options of it, as megatron-plain:graphs=router."
        ),
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="Model of the layer.")] = MODEL,
    system: Annotated[str, typer.Option(metavar="NAME", help="Machine of the host.")] = SYSTEM,
    ranks: Annotated[int, typer.Option(min=1, max=4096, help="GPUs of the experts.")] = RANKS,
    tp: Annotated[int, typer.Option(min=1, max=64, help="GPUs that slice attention.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, max=1 << 24, help="Tokens of a GPU.")] = TOKENS,
    kernels: Annotated[bool, typer.Option("--kernels", help="Every operation, in order.")] = False,
) -> None:
    """List software stacks; say what STACK launches for a layer, and what that takes its host."""
    from replay.model.work.kernel_lists import load
    from replay.model.work.stacks import STACKS, Stack, even_sizes, facts_of
    from tracegen.shared.display.content import Column, Table

    if stack is None:
        rows = [
            (name, "train" if load(listed).trains else "serve", load(listed).title)
            for name, (listed, _) in STACKS.items()
        ]
        columns = [Column("stack"), Column("runs"), Column("what it is")]
        show(Table("stacks", "Software stacks", columns, rows), "")
        print("moereplay stacks STACK counts what one launches; --kernels lists it.")
        return
    import hwmodel
    import tracegen.models

    shape, machine = tracegen.models.load(model), hwmodel.load(system)
    found = Stack.of(stack, machine, facts_of(shape))
    sizes = even_sizes(shape, tokens=tokens // tp, ranks=ranks, tp=tp)
    listed = [
        row
        for part in found.kernels.parts
        if _is_there(part.name, sizes)
        for row in found.listed(sizes, [part.name], part.direction)
        if row.direction == part.direction
    ]
    title = f"{found.kernels.title}: a layer of {model} on {ranks} GPUs, {tokens:,} tokens each"
    show((_every if kernels else _counted)(title, found, listed), "")
    options = ", ".join(f"{name}={_text(value)}" for name, value in found.options.items())
    if options:
        print(f"Options: {options}.")
    print(f"Host: {machine.host.processor.value}. Exchanges of rows are the scheme's.")


ELSEWHERE = frozenset({"embedding", "head", "optimizer", "hop", "dense", "nodes"})
"""Parts that no layer with experts has."""


def _is_there(part: str, sizes: KernelSizes) -> bool:
    """Whether a layer with experts of such a model has a part."""
    if part in ELSEWHERE or (part == "shared" and not sizes.shared):
        return False
    return (part != "latent attention" or sizes.kv_rank > 0) and (
        part != "attention" or not sizes.kv_rank
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _counted(title: str, stack: Stack, listed: Sequence[ListedOperation]) -> Table:
    """Sums by part and pass, and of all."""
    from tracegen.shared.display.content import Column, Table

    groups: dict[tuple[str, str], list[ListedOperation]] = {}
    for row in listed:
        groups.setdefault((row.part, row.direction), []).append(row)
    columns = [
        Column("part"), Column("pass"),
        Column("kernels", form=",d", says="launches; a graph's are launched at once"),
        Column("tensors", form=",d", says="allocations of device memory"),
        Column("waits", form=",d", says="times that the host waits for its GPU"),
        Column("MB", form=",.1f", says="of device memory, by kernels that do not multiply or send"),
        Column("host", "us", form=",.0f", says="what launches take the host, but those of graphs"),
    ]  # fmt: skip
    rows = [(*key, *_sums(stack, part)) for key, part in groups.items()]
    rows.append(("all", "", *_sums(stack, listed)))
    return Table("stack", title, columns, rows)


def _sums(stack: Stack, rows: Sequence[ListedOperation]) -> tuple[int, int, int, float, float]:
    return (
        sum(row.kernels for row in rows),
        sum(row.tensors for row in rows),
        sum(row.waits for row in rows),
        sum(row.moves for row in rows if row.kind not in ("gemm", "exchange")) / 1e6,
        sum(stack.costs.ps(row) for row in rows if not _is_captured(stack, row)) / 1e6,
    )


def _is_captured(stack: Stack, row: ListedOperation) -> bool:
    """Whether a graph of the stack's options holds an operation."""
    return row.captured and stack.captures(row.graph)


def _every(title: str, stack: Stack, listed: Sequence[ListedOperation]) -> Table:
    """One row for each operation, in the order of launches."""
    from tracegen.shared.display.content import Column, Table

    columns = [
        Column("part"), Column("pass"), Column("operation"), Column("call", rank=1),
        Column("bound by", rank=2), Column("kernels", form=",d"),
        Column("MB", form=",.2f", rank=1), Column("host", "us", form=",.1f"),
        Column("source", rank=3),
    ]  # fmt: skip
    rows = [
        (
            row.part, row.direction, row.name, row.call, row.kind, row.kernels,
            row.moves / 1e6, stack.costs.ps(row) / 1e6, row.source,
        )
        for row in listed
    ]  # fmt: skip
    return Table("operations", title, columns, rows)
