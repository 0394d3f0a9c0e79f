"""Routing traces of Mixture-of-Experts models: read, write, make, find.

Knows tokens, experts, layers, steps and files; knows nothing of GPUs, links or time.
Names are imported on first use, so that ``import tracegen`` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

# The one eager import, of a module that imports nothing itself: `tracegen.capture` is the
# function. Importing the submodule first would bind the module to that name for good, while
# this binds the function after it, and Python never sets a loaded submodule's name again.
from tracegen.capture import capture

if TYPE_CHECKING:
    from tracegen import generate as generate
    from tracegen import importers as importers
    from tracegen import library as library
    from tracegen import models as models
    from tracegen.file.reader import TraceFile as TraceFile
    from tracegen.file.writer import write as write
    from tracegen.generate import GENERATORS as GENERATORS
    from tracegen.library import load as load
    from tracegen.library import open_trace as open  # noqa: F401 (the name of the API)
    from tracegen.models import ModelShape as ModelShape
    from tracegen.shared.errors import UserError as UserError
    from tracegen.trace.graph import GraphCounts as GraphCounts
    from tracegen.trace.graph import TokenExpertGraph as TokenExpertGraph
    from tracegen.trace.graph import count_graph as count_graph
    from tracegen.trace.graph import expert_graph as expert_graph
    from tracegen.trace.routing import LayerDag as LayerDag
    from tracegen.trace.routing import RoutingTrace as RoutingTrace
    from tracegen.trace.tables import RequestTable as RequestTable
    from tracegen.trace.tables import TokenTable as TokenTable
    from tracegen.trace.tables import TraceInfo as TraceInfo
    from tracegen.trace.tables import TraceModel as TraceModel

_HOME = {
    "GENERATORS": "generate",
    "GraphCounts": "trace.graph",
    "LayerDag": "trace.routing",
    "ModelShape": "models",
    "RequestTable": "trace.tables",
    "RoutingTrace": "trace.routing",
    "TokenExpertGraph": "trace.graph",
    "TokenTable": "trace.tables",
    "TraceFile": "file.reader",
    "TraceInfo": "trace.tables",
    "TraceModel": "trace.tables",
    "UserError": "shared.errors",
    "count_graph": "trace.graph",
    "expert_graph": "trace.graph",
    "load": "library",
    "open": "library",
    "write": "file.writer",
}
_SUBMODULES = ("generate", "importers", "library", "models")

__all__ = ["capture", *_HOME, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _SUBMODULES:
        return importlib.import_module(f"tracegen.{name}")
    if name not in _HOME:
        msg = f"module 'tracegen' has no attribute {name!r}"
        raise AttributeError(msg)
    module = importlib.import_module(f"tracegen.{_HOME[name]}")
    value = getattr(module, "open_trace" if name == "open" else name)
    globals()[name] = value
    return value
