"""Routing traces of Mixture-of-Experts models: read, write, make, find.

Knows tokens, experts, layers, steps and files; knows nothing of GPUs, links or time.
Names are imported on first use, so that ``import tracegen`` costs next to nothing.
"""

from typing import TYPE_CHECKING

# The one eager import, of a module that imports nothing itself: `tracegen.capture` is the
# function. Importing the submodule first would bind the module to that name for good, while
# this binds the function after it, and Python never sets a loaded submodule's name again.
from tracegen.capture import capture
from tracegen.shared.lazy import loader

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

_HOMES = {
    "GENERATORS": "tracegen.generate",
    "GraphCounts": "tracegen.trace.graph",
    "LayerDag": "tracegen.trace.routing",
    "ModelShape": "tracegen.models",
    "RequestTable": "tracegen.trace.tables",
    "RoutingTrace": "tracegen.trace.routing",
    "TokenExpertGraph": "tracegen.trace.graph",
    "TokenTable": "tracegen.trace.tables",
    "TraceFile": "tracegen.file.reader",
    "TraceInfo": "tracegen.trace.tables",
    "TraceModel": "tracegen.trace.tables",
    "UserError": "tracegen.shared.errors",
    "count_graph": "tracegen.trace.graph",
    "expert_graph": "tracegen.trace.graph",
    "load": "tracegen.library",
    "open": "tracegen.library:open_trace",
    "write": "tracegen.file.writer",
    "generate": "tracegen.generate:",
    "importers": "tracegen.importers:",
    "library": "tracegen.library:",
    "models": "tracegen.models:",
}

__all__ = ["capture", *_HOMES]

__getattr__ = loader(__name__, _HOMES)
