"""``moereplay collective``: collectives alone, as nccl-tests times them."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.options import JsonOption, entries_of
from replay.cli.screen import progress, show
from replay.experiments.base.spec import DEFAULT_SYSTEM
from replay.experiments.layer.spec import RunSpec
from tracegen.cli.delivery import Delivery, delivers

DEFAULT_SIZES = "1M..1G"


@delivers
def collective(
    op: Annotated[
        str, typer.Option("--op", help="allreduce, allgather or reducescatter.")
    ] = "allreduce",
    sizes: Annotated[
        str,
        typer.Option(
            "--bytes",
            metavar="SIZES",
            help="Bytes of the larger buffer of a GPU: a list (1M,3M), or a range that doubles "
            "(1M..1G); K, M and G are powers of 1024.",
        ),
    ] = DEFAULT_SIZES,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm", help="A name of `moereplay collective --list`; repeatable [nccl]."
        ),
    ] = None,
    system: Annotated[
        str, typer.Option("--system", help=str(RunSpec.model_fields["system"].description))
    ] = DEFAULT_SYSTEM,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="Change a hardware value; repeatable."),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", help="GPUs that take part [all of the system].")
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option("--blocks", help="Thread blocks of each GPU [what the software takes]."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the algorithms and stop.")] = False,
    json_: JsonOption = None,
    *,
    deliver: Delivery,
) -> None:
    """Time a collective by itself: bus bandwidth by size, as nccl-tests prints it."""
    from replay.experiments.collective.replay import collective as replayed
    from replay.experiments.collective.replay import sizes_of
    from replay.model.collectives.library import ALGORITHMS
    from replay.report.collective import table
    from replay.report.pages import page

    if list_:
        for one in ALGORITHMS.values():
            runs = ", ".join(each.replace("_", "") for each in one.collectives)
            print(f"{one.name}: {one.summary} ({runs})")
        return
    asked = sizes_of(sizes)
    names = algorithm or ["nccl"]
    with progress(len(asked) * len(names), "row") as bar:
        result = replayed(
            op, asked, names,
            system=system, overrides=entries_of(set_ or []), ranks=ranks, blocks=blocks,
            progress=bar.update,
        )  # fmt: skip
    if json_ is not None:
        result.save(json_)
    deliver(lambda: page(result))
    show(table(result))
