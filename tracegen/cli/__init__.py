"""``moereplay trace``: every command of traces; nothing but the whole command line imports it."""

from collections.abc import Callable

import typer

from tracegen.cli import capture, exports, graph, importers, library, models, stats, traces

COMMANDS: dict[str, Callable[..., None]] = {
    "list": library.list_traces,
    "fetch": library.fetch,
    "add": library.add,
    "publish": library.publish,
    "describe": library.describe,
    "convert": library.convert,
    "capture": capture.capture,
    "recover": capture.recover,
    "stats": stats.stats,
    "graph": graph.graph,
    "import": importers.import_dump,
    "export": exports.export_trace,
    "generate": traces.generate,
    "models": models.models,
    "info": traces.info,
    "validate": traces.validate,
}
"""Commands by name, in the order of the help."""

app = typer.Typer(no_args_is_help=True, help="Routing traces: the experts that every token chose.")
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
