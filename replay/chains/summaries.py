"""What routing asks for, of several layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from replay.measure.parts import Routing

Summary = dict[str, float]


def mean_of(summaries: Sequence[Summary]) -> Summary:
    """Mean of each count."""
    return {name: float(np.mean([one[name] for one in summaries])) for name in summaries[0]}


def mean_routing(summaries: Sequence[Summary]) -> Routing:
    """Mean of what the routing asks for, over layers."""
    mean = mean_of(summaries)
    return Routing(**{name: mean[name] for name in Routing.model_fields})
