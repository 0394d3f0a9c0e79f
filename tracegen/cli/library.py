"""``moereplay trace list | fetch | add | publish | convert``: the library from the command line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracegen.cli.common import AsJson, Force, TraceName, user_errors
from tracegen.cli.outputs import file_argument, folder_argument, folder_option
from tracegen.shared import screen

if TYPE_CHECKING:
    from tracegen.library import ListedTrace

PROGRESS_FROM_BYTES = 4_000_000
"""Download from which a progress bar is worth its line, in bytes (a second at 4 MB/s)."""

CatalogueOption = Annotated[
    str | None,
    typer.Option("--catalogue", help="Look only in this catalogue: a folder or a URL."),
]


def list_traces(
    catalogue: CatalogueOption = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Ask no server; use cached copies of remote catalogues."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the traces of all catalogues.

    The catalogue of the package comes first, then those of the configuration.
    """
    with user_errors():
        from tracegen import library

        found, problems = library.search(catalogue, offline=offline or None)
        for problem in problems:
            typer.echo(f"note: {problem}", err=True)
        if as_json:
            shown = [
                {**item.entry.model_dump(), "catalogue": item.catalogue, "cached": item.is_local} for item in found
            ]
            typer.echo(json.dumps(shown, indent=2))
            return
        _print_table(found)


def _print_table(found: list[ListedTrace]) -> None:
    """Sizes in a table, origins below it."""
    from rich.text import Text

    from tracegen.shared.display.content import Column, Table

    columns = [
        Column("name"),
        Column("layers", form="d", rank=1),
        Column("tokens", form=",d"),
        Column("top-k", form="d"),
        Column("experts", form="d"),
        Column("GPUs", form="d", rank=2),
        Column("max/mean", form=".2f", rank=2, says="load of the busiest expert over the mean"),
        Column("size", "MB", ".1f", rank=1),
        Column("here", rank=1, says="whether it need not be fetched"),
    ]
    rows = [
        (
            entry.name,
            entry.num_layers,
            entry.num_tokens,
            entry.topk,
            entry.num_experts,
            entry.num_ranks or "any",
            entry.load_max_over_mean or None,
            entry.file_bytes / 1e6,
            "yes" if item.is_local else "no",
        )
        for item in found
        for entry in [item.entry]
    ]
    table = Table("traces", "Traces", columns, rows)
    screen.show(table, "", *table.explanations(), "", sep="\n")
    for item in found:
        entry = item.entry
        screen.show(Text.assemble((entry.name, "bold"), f": {entry.title}"))
        origin = f"{entry.phase}; {entry.license}; {entry.source}"
        if item.catalogue != "built-in":
            origin += f"; from {item.catalogue}"
        screen.show(f"  {origin}", style="dim")


def fetch(
    names: Annotated[list[str], typer.Argument(help="Names of `moereplay trace list`, or URLs of trace files.")],
    catalogue: CatalogueOption = None,
    out: Annotated[Path | None, folder_option("--out", help="Also copy the files into this folder.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use the cache only.")] = False,
) -> None:
    """Download traces into the cache, and print where they are.

    Every byte and every value is checked.
    """
    with user_errors():
        from tracegen import library

        for name in names:
            with _progress(name) as on_bytes:
                path = library.fetch(name, catalogue, offline=offline or None, out=out, on_bytes=on_bytes)
            typer.echo(f"{name}: {path}")
            if problem := library.name_notice(name, catalogue, offline=offline or None):
                typer.echo(f"note: {problem}", err=True)


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Progress in bytes, on a terminal and only when there is something to wait for."""
    from tqdm import tqdm

    file = screen.terminal(sys.stderr)
    bar_of_bytes = tqdm(
        desc=screen.plain(name),
        unit="B",
        unit_scale=True,
        disable=not file.isatty(),
        delay=1,
        leave=False,
        file=file,
    )
    with bar_of_bytes as bar:

        def on_bytes(done: int, total: int | None) -> None:
            if (total or PROGRESS_FROM_BYTES) < PROGRESS_FROM_BYTES:
                return
            bar.total = total
            bar.update(done - bar.n)

        yield on_bytes


def add(
    folder: Annotated[Path, folder_argument("Folder of the catalogue; made if there is none.")],
    trace: TraceName,
    name: Annotated[str | None, typer.Option(help="Name in the catalogue [that of the trace].")] = None,
    dataset: Annotated[str, typer.Option(help="Origin of the texts that were routed.")] = "",
    citation: Annotated[str, typer.Option(help="Publication to cite.")] = "",
    source: Annotated[str, typer.Option(help="Origin of the trace.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the trace of that name.")] = False,
) -> None:
    """Copy a trace into a folder, and list it in its catalogue."""
    with user_errors():
        from tracegen.library.publish import add as add_to

        entry = add_to(
            folder,
            trace,
            name=name,
            dataset=dataset,
            citation=citation,
            source=source,
            replace=force,
        )
        typer.echo(f"{folder}: {entry.name}, {entry.file_bytes} bytes, sha256 {entry.sha256[:12]}")


def publish(
    folder: Annotated[Path, folder_argument("Folder to make; must not exist.")],
    traces: Annotated[list[str], typer.Argument(help="Names of `moereplay trace list`, or files.")],
    title: Annotated[str, typer.Option(help="Title of the data set.")],
    creator: Annotated[str, typer.Option(help="Name of the publisher.")],
    description: Annotated[str, typer.Option(help="Description of the data set, a paragraph.")] = "",
    citation: Annotated[str, typer.Option(help="Publication to cite.")] = "",
    dataset: Annotated[str, typer.Option(help="Origin of the texts that were routed.")] = "",
    source: Annotated[str, typer.Option(help="Origin of the traces [that in each trace].")] = "",
    base_url: Annotated[str, typer.Option(help="URL at which the folder will be found.")] = "",
    parquet: Annotated[bool, typer.Option(help="Also write tables (Parquet) for the Hub's viewer and others.")] = True,
    with_token_ids: Annotated[
        bool,
        typer.Option("--with-token-ids", help="Publish the token ids, which reveal the texts."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the folder.")] = False,
) -> None:
    """Make a folder of traces to upload as a data set.

    It holds the traces, a catalogue, a data set card and Croissant metadata.
    """
    with user_errors():
        from tracegen.library.card import FolderFacts
        from tracegen.library.publish import publish as publish_to

        about = FolderFacts(
            title=title,
            creator=creator,
            description=description,
            citation=citation,
            dataset=dataset,
            source=source,
            base_url=base_url,
        )
        entries = publish_to(
            folder,
            traces,
            about,
            with_token_ids=with_token_ids,
            with_tables=parquet,
            replace=force,
        )
        size = sum(entry.file_bytes for entry in entries)
        typer.echo(f"{folder}: {len(entries)} traces, {size / 1e6:.1f} MB, ready to upload")


def describe(
    trace: Annotated[str, typer.Argument(help="Trace file of your own, outside of catalogues.", show_default=False)],
    title: Annotated[str | None, typer.Option(help="Title of the trace.")] = None,
    license: Annotated[
        str | None, typer.Option(help="SPDX identifier of the trace's licence, such as CC-BY-4.0.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Origin of the trace.")] = None,
    notes: Annotated[str | None, typer.Option(help="Remarks for readers.")] = None,
) -> None:
    """Set the title, licence, origin or remarks of a trace.

    The content and the content id stay.
    """
    with user_errors():
        from tracegen.library.label import describe as set_texts

        digest = set_texts(trace, title=title, license=license, source=source, notes=notes)
        typer.echo(f"{trace}: described, content {digest[:12]} as before")


def convert(
    source: Annotated[str, typer.Argument(help="A name of `moereplay trace list`, a file or a URL.")],
    out: Annotated[Path, file_argument("File to write.")],
    to: Annotated[str | None, typer.Option(help="Version of the format [the newest].")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Positions to keep among the MoE layers: A:B or A,B,... [all].")
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Token rows to keep, A:B [all].")] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Columns to leave out: token_id, gate_weights, rank, flags or requests; repeatable."),
    ] = None,
    force: Force = False,
) -> None:
    """Rewrite a trace, whole or in part, in any format version."""
    with user_errors():
        from tracegen.library.convert import convert as rewrite

        made = rewrite(
            source,
            out,
            to=to,
            layers=layers,
            tokens=tokens,
            without=tuple(without or ()),
            overwrite=force,
        )
        same = "the same content" if made.is_same else f"derived from {made.parent[:12]}"
        typer.echo(f"{out}: version {made.version}, {same}, content {made.content_id[:12]}")
