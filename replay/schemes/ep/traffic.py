"""Classes of payload traffic: how many rows cross every port, by closed form.

A *pair* is one (token, expert), a *copy* one (token, GPU that has at least one of its experts). Of
token t, e(t) counts the pairs on other GPUs, r(t) the other GPUs that have its experts, and h(t) is
1 if there is any, else 0. Ein(g) and In(g) are the pairs and the copies that GPU g gets of other
GPUs' tokens, T(g) is the number of its own tokens; a GPU alone moves none. Sums run over the tokens
that GPU g owns. The combine carries the rows of the dispatch the other way, or those of another
class: its uplink has that class's downlink, its downlink that class's uplink.

Where ranks lie in several NVLink domains, `NETWORK` says how rows get from one to another, and the
classes of `TRAFFIC` say how they get on from the GPU where they came into a domain. The index of a
GPU is its place in its domain; n(t) counts the other domains that have an expert of token t.

The bytes of a row are `LayerWork.dispatch_row_bytes` and `LayerWork.combine_row_bytes`. So DeepEP,
of class "copy", puts dispatch_row_bytes x sum r(t) on the uplink of GPU g in its dispatch.
`replay.schemes.contract` counts the same rows token by token and demands them of every scheme.
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
    "pair-copy": Traffic("one row per (token, expert), one per (token, GPU) back", "sum e(t)", "Ein(g)", back="copy"),
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


class NetworkTraffic(NamedTuple):
    """Way of rows from one NVLink domain to another.

    Attributes
    ----------
    moves
        What travels, in words.
    out, in_
        Rows that the NIC of GPU g sends and receives in the dispatch. The combine has the same the
        other way round, except in classes direct and rail: there a row goes back as a dispatch to
        its owner's rank would.
    """

    moves: str
    out: str
    in_: str


NETWORK = {
    "": NetworkTraffic("nothing: the scheme knows one NVLink domain", "0", "0"),
    "free": NetworkTraffic("nothing: rows move in no time", "0", "0"),
    "direct": NetworkTraffic(
        "each row from the NIC of its GPU to that of the GPU it is for",
        "sum e(t) or r(t) of other domains",
        "Ein(g) or In(g) of other domains' tokens",
    ),
    "rail": NetworkTraffic(
        "each row over NVLink to the GPU with its target's index, from whose NIC it goes there",
        "rows of g's domain for GPUs of g's index in other domains",
        "Ein(g) or In(g) of other domains' tokens",
    ),
    "node": NetworkTraffic(
        "one row per (token, domain) to the GPU of the same index, forwarded from there",
        "sum n(t)",
        "tokens of GPUs of g's index in other domains with an expert in g's domain",
    ),
    "gather": NetworkTraffic(
        "every token to the GPU of the same index in every other domain, forwarded from there",
        "T(g) x (domains - 1)",
        "sum of T of GPUs of g's index in other domains",
    ),
    "ring": NetworkTraffic(
        "every token round a ring of the GPUs of the same index, forwarded from each",
        "sum of T of GPUs of g's index, but that in the next domain",
        "sum of T of GPUs of g's index in other domains",
    ),
    "rings": NetworkTraffic(
        "every token round a ring of all GPUs, with an equal part for each NIC of a domain",
        "(sum of all T - T of the GPU of g's index in the next domain) / GPUs of a domain",
        "(sum of all T - T(g)) / GPUs of a domain",
    ),
}
"""Classes of `Scheme.network`."""


def way_back(traffic: str) -> str:
    """Class of the rows that the combine carries the other way."""
    return TRAFFIC[traffic].back or traffic
