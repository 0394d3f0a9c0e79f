"""Measures of the GPUs that were replayed in full, where others were not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from replay.measure.network import network_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.measure.parts import NetworkPort
    from replay.measure.result import Measures

PER_GPU = (
    "rank_end_us",
    "payload_bytes",
    "wire_bytes",
    "exposed_communication_us_per_gpu",
    "exposure",
    "sm_time_us",
)
"""Measures, and parts of them, whose lists have an entry per GPU."""

NOTED = ("wire_bytes", "polling_us", "counters")
"""The same of mechanisms."""


def of_gpus(measures: Measures, gpus: Sequence[int], cards: Sequence[int]) -> Measures:
    """Leave out of all lists the entries of other GPUs, and of means their part.

    Times, bounds, utilisation and the critical path are those of the whole schedule.

    Parameters
    ----------
    gpus, cards
        Ranks that stay, and numbers of their network cards.
    """
    changes = {name: _entries(getattr(measures, name), gpus) for name in PER_GPU}
    mechanisms = measures.mechanisms
    changes["mechanisms"] = mechanisms.model_copy(
        update={name: _entries(getattr(mechanisms, name), gpus) for name in NOTED}
    )
    exposed = changes["exposed_communication_us_per_gpu"]
    changes["exposed_communication_us"] = sum(exposed) / len(exposed)
    if measures.network is not None:
        stays = {"pcie-out": gpus, "pcie-in": gpus, "nic-out": cards, "nic-in": cards}
        ports = {
            name: [port for port in of if name not in stays or _number(port) in stays[name]]
            for name, of in measures.network.ports.items()
        }
        changes["network"] = network_of(ports)
    return measures.model_copy(update=changes)


def _number(port: NetworkPort) -> int:
    """Number of the card or GPU that a port is of, which ends its name."""
    return int(port.name.rpartition(" ")[2])


def _entries(value: Any, gpus: Sequence[int]) -> Any:
    if isinstance(value, list):
        return [value[gpu] for gpu in gpus]
    if isinstance(value, dict):
        return {name: _entries(one, gpus) for name, one in value.items()}
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return value.model_copy(update={name: _entries(getattr(value, name), gpus) for name in fields})
    return value
