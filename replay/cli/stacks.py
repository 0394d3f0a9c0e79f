"""``moereplay stacks``: software stacks, and what one launches for a layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.screen import show
from replay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.model.work.kernel_lists import KernelSizes, ListedOperation
    from replay.model.work.stacks import Stack
    from tracegen.models import ModelShape
    from tracegen.shared.display.content import Table

MODELS, SYSTEM, RANKS, TOKENS = ("qwen3-30b-a3b", "deepseek-v3"), "dgx-h100", 8, 4096
"""Of the models, the first whose attention a list has is taken where none is named."""


def stacks(
    stack: Annotated[
        str | None,
        typer.Argument(
            metavar="[STACK]",
            help="Name of a stack, with any options behind a colon, such as megatron-plain:graphs=router.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Model of the layer: a name of `moereplay trace models` [{MODELS[0]}, or {MODELS[1]} where a "
            "stack has the attention of that one only].",
        ),
    ] = None,
    system: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Machine whose host launches: a name of `moereplay hardware list`, or a TOML file."
        ),
    ] = SYSTEM,
    ranks: Annotated[int, typer.Option(min=1, max=4096, help="GPUs that the experts are spread over.")] = RANKS,
    tp: Annotated[int, typer.Option(min=1, max=64, help="GPUs that attention is sliced over.")] = 1,
    tokens: Annotated[
        int, typer.Option(min=1, max=1 << 24, help="Tokens of a GPU, or of the --tp GPUs together.")
    ] = TOKENS,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="List every operation in order, in place of sums by part.")
    ] = False,
) -> None:
    """List software stacks, or count what one launches for a layer.

    Printed are kernels, tensors, waits of the host, bytes and time on the host, by part of the layer.
    """
    from replay.model.work.kernel_lists import load
    from replay.model.work.stacks import STACKS, Stack, even_sizes, facts_of
    from replay.report.comparisons import tables_group
    from tracegen.shared.display.content import Column, Table

    if stack is None:
        rows = [
            (name, "train" if load(listed).trains else "serve", load(listed).title)
            for name, (listed, _) in STACKS.items()
        ]
        columns = [Column("stack"), Column("runs"), Column("what it is")]
        show(Table("stacks", "Software stacks", columns, rows), "")
        print(
            "--stack bare is none of them: hosts that launch what the model and the scheme need, and do nothing else; "
            "deepgemm is not one either: the kernels of DeepGEMM's own comparison around DeepEP's."
        )
        print("moereplay stacks STACK counts what one launches, with options; --kernels lists it.")
        return
    import hwmodel
    import tracegen.models

    machine = hwmodel.load(system)
    *others, last = MODELS if model is None else (model,)
    for name in others:
        shape = tracegen.models.load(name)
        found = Stack.of(stack, machine, facts_of(shape))
        if found.has_attention_of(shape):
            break
    else:
        shape = tracegen.models.load(last)
        found = Stack.of(stack, machine, facts_of(shape))
    found.check_model(shape, tp)
    found = found.with_dispatcher(found.dispatcher)  # whose calls a replay pays
    _check_sizes(shape, ranks=ranks, tp=tp, tokens=tokens)
    sizes = replace(even_sizes(shape, tokens=tokens // tp, ranks=ranks, tp=tp), sms=machine.compute.num_sms)
    listed = [
        row
        for part in found.kernels.parts
        if _is_there(part.name, sizes)
        for row in found.operations(sizes, [part.name], part.direction)
        if row.direction == part.direction
    ]
    each = "each" if tp == 1 else f"for {tp} of them together"
    title = f"{found.kernels.title}: a layer of {shape.name}, experts on {ranks:,} GPUs, {tokens:,} tokens {each}"
    lines = [f"Host: {machine.host.processor.value}. Exchanges of rows are the scheme's."]
    if not shape.num_heads:
        lines.append(f"Without attention, of whose heads nothing is known in {shape.name}.")
    if not found.kernels.trains:
        lines.append("Host times: kernels launched one by one; a CUDA graph of all is one launch.")
    if found.options and not kernels:
        lines += ["", "Options, behind the name and a colon:", *_options(found)]
    show(tables_group(title, [(_every if kernels else _count_table)(found, listed)], lines))


ELSEWHERE = frozenset({"embedding", "head", "optimizer", "hop", "dense", "nodes"})
"""Parts that no layer with experts has."""


def _is_there(part: str, sizes: KernelSizes) -> bool:
    """Tell whether a layer with experts of such a model has a part."""
    if part in ELSEWHERE or (part == "shared" and not sizes.shared):
        return False
    if "attention" in part and not sizes.heads:
        return False
    return (part != "latent attention" or sizes.kv_rank > 0) and (part != "attention" or not sizes.kv_rank)


def _check_sizes(shape: ModelShape, **sizes: int) -> None:
    """Refuse sizes that do not divide what is spread over them."""
    for name, what, count in (
        ("ranks", f"experts of {shape.name}", shape.num_ffn_experts),
        ("tp", f"attention heads of {shape.name}", shape.num_heads or 0),
        ("tp", "tokens", sizes["tokens"]),
    ):
        if count % sizes[name]:
            raise UserError(f"--{name} {sizes[name]} does not divide the {count:,} {what}")


def _options(stack: Stack) -> Iterator[str]:
    """A line for every option: its value here, others that it may have, and what it says."""
    from replay.model.work.kernel_lists.expressions import in_words

    for name, option in stack.kernels.options.items():
        value = stack.options[name]
        others = ", ".join(in_words(one) for one in option.choices if one != value)
        yield f"{name}={in_words(value)} (or {others}): {option.meaning}."


def _count_table(stack: Stack, listed: Sequence[ListedOperation]) -> Table:
    """Sums by part and pass, and of all."""
    from tracegen.shared.display.content import Column, Table

    groups: dict[tuple[str, str], list[ListedOperation]] = {}
    for row in listed:
        groups.setdefault((row.part, row.direction), []).append(row)
    columns = [
        Column("part"),
        Column("pass"),
        Column("kernels", form=",d", says="as a profiler counts; a graph's are launched at once"),
        Column("tensors", form=",d", says="allocations of device memory"),
        Column("waits", form=",d", says="times that the host waits for its GPU"),
        Column("MB", form=",.1f", says="of device memory, by kernels that do not multiply or send"),
        Column("host", "us", form=",.0f", says="what launches take the host, but those of graphs"),
    ]
    rows = [(*key, *_sums(stack, part)) for key, part in groups.items()]
    rows.append(("all", "", *_sums(stack, listed)))
    return Table("stack", "Launched in each pass", columns, rows)


def _sums(stack: Stack, rows: Sequence[ListedOperation]) -> tuple[int, int, int, float, float]:
    return (
        sum(row.profiler_kernels for row in rows),
        sum(row.tensors for row in rows),
        sum(row.waits for row in rows),
        sum(row.moves for row in rows if row.kind not in ("gemm", "exchange")) / 1e6,
        sum(stack.costs.ps(row) for row in rows if not _is_captured(stack, row)) / 1e6,
    )


def _is_captured(stack: Stack, row: ListedOperation) -> bool:
    """Tell whether a graph of the stack's options holds an operation."""
    return row.captured and stack.captures(row.graph)


def _every(stack: Stack, listed: Sequence[ListedOperation]) -> Table:
    """One row for each operation, in the order of launches."""
    from tracegen.shared.display.content import Column, Table

    columns = [
        Column("part"),
        Column("pass"),
        Column("operation"),
        Column("call", rank=1, says="what launches it, on which its host time depends"),
        Column("bound by", rank=2, says="map: rows to places; rows: bring them; tiny: nothing"),
        Column("kernels", form=",d", says="0 where the host or the driver copies, or the host waits"),
        Column("MB", form=",.2f", rank=1, says="of device memory"),
        Column("host", "us", form=",.1f", says="without waiting, and as if in no graph"),
        Column("source", rank=3),
    ]
    rows = [
        (
            row.part,
            row.direction,
            row.name,
            row.call,
            row.kind,
            row.profiler_kernels,
            row.moves / 1e6,
            stack.costs.ps(row) / 1e6,
            row.source,
        )
        for row in listed
    ]
    return Table("operations", "Operations, in order", columns, rows)
