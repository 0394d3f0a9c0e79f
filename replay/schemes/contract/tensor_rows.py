"""Payload of layers whose weights are sliced, counted by sending every row over its ports."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from replay.model.work.transformer_layer import Leave
from replay.schemes.tp.traffic import gathers_of

if TYPE_CHECKING:
    from replay.model.work.transformer_layer import TensorLayer
    from replay.schemes.contract.reading import Port
    from replay.schemes.tp.traffic import TensorTraffic

BF16_BYTES = 2


@cache
def payload_row_by_row(layer: TensorLayer, traffic: TensorTraffic) -> dict[str, Counter[Port]]:
    """Payload of each phase, "gather" and "reduce", on every port."""
    num = {"gather": gathers_of(layer), "reduce": layer.num(Leave)}
    found: dict[str, Counter[Port]] = {"gather": Counter(), "reduce": Counter()}
    if layer.num_ranks > 1:
        for phase, counter in found.items():
            for row in range(layer.tokens):
                owner = row * layer.num_ranks // layer.tokens
                for port in _ports_of_row(phase, getattr(traffic, phase), owner, layer.num_ranks):
                    counter[port] += num[phase] * layer.hidden * BF16_BYTES
    return found


def _ports_of_row(phase: str, name: str, owner: int, num_ranks: int) -> list[Port]:
    """Every port that one row passes on its way from, or to, its owner; as often as it does."""
    others = [gpu for gpu in range(num_ranks) if gpu != owner]
    every = range(num_ranks)
    if name == "none":
        return []
    if phase == "gather":
        if name == "ring":
            way = [(owner + hop) % num_ranks for hop in range(num_ranks)]
            return _along(way)
        if name == "direct":
            return [port for gpu in others for port in (("uplink", owner), ("downlink", gpu))]
        receive = every if name == "switch" else others
        return [("uplink", owner), *(("downlink", gpu) for gpu in receive)]
    way = [(owner + 1 + hop) % num_ranks for hop in range(num_ranks)]  # ends at the owner
    if name in ("ring", "ring-all"):
        back = [(owner + hop) % num_ranks for hop in range(num_ranks)]
        return _along(way) + (_along(back) if name == "ring-all" else [])
    if name in ("direct", "direct-all"):
        to = [port for gpu in others for port in (("uplink", gpu), ("downlink", owner))]
        copies = [port for gpu in others for port in (("uplink", owner), ("downlink", gpu))]
        return to + (copies if name == "direct-all" else [])
    send = others if name == "merged" else every
    summed: list[Port] = [*(("uplink", gpu) for gpu in send), ("downlink", owner)]
    if name == "switch-all":
        summed += [("uplink", owner), *(("downlink", gpu) for gpu in every)]
    return summed


def _along(way: list[int]) -> list[Port]:
    """Ports between the GPUs of a way."""
    return [
        port
        for gpu, following in pairwise(way)
        for port in (("uplink", gpu), ("downlink", following))
    ]
