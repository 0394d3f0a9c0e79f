"""Classes of payload traffic: how many rows cross every port, by closed form.

A *pair* is one (token, expert), a *copy* one (token, GPU that has at least one of its experts). Of
token t, e(t) counts the pairs on other GPUs, r(t) the other GPUs that have its experts, and h(t) is
1 if there is any, else 0. Ein(g) and In(g) are the pairs and the copies that GPU g gets of other
GPUs' tokens, T(g) is the number of its own tokens; a GPU alone moves none. Sums run over the tokens
that GPU g owns. The combine carries the rows of the dispatch the other way, or those of another
class: its uplink has that class's downlink, its downlink that class's uplink.

The bytes of a row are `LayerWork.dispatch_row_bytes` and `LayerWork.combine_row_bytes`. So DeepEP,
of class "copy", puts dispatch_row_bytes x sum r(t) on the uplink of GPU g in its dispatch.
`replay.contract` counts the same rows token by token and demands them of every scheme.
"""

from __future__ import annotations

from typing import NamedTuple


class Traffic(NamedTuple):
    """One class.

    Attributes
    ----------
    moves
        What travels, in words.
    up, down
        Rows on the uplink and on the downlink of GPU g in the dispatch.
    back
        Class whose rows the combine carries the other way; its own if empty.
    """

    moves: str
    up: str
    down: str
    back: str = ""


TRAFFIC = {
    "none": Traffic("nothing", "0", "0"),
    "pair": Traffic("one row per (token, expert)", "sum e(t)", "Ein(g)"),
    "copy": Traffic("one row per (token, GPU)", "sum r(t)", "In(g)"),
    "pair-copy": Traffic(
        "one row per (token, expert), one per (token, GPU) back", "sum e(t)", "Ein(g)", back="copy"
    ),
    "switch": Traffic(
        "one row per token up, one per (token, GPU) down; the combine the other way round",
        "sum h(t)",
        "In(g)",
    ),
    "ring": Traffic(
        "every token to every other GPU, handed round a ring",
        "sum of all T - T(g + 1)",
        "sum of all T - T(g)",
    ),
    "dense": Traffic("every token to every GPU, its own included", "T(g)", "sum of all T"),
}


def way_back(traffic: str) -> str:
    """Class of the rows that the combine carries the other way."""
    return TRAFFIC[traffic].back or traffic
