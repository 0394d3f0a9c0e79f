"""A whole machine: a description, and the models made from it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from hwmodel.attention import Attention
from hwmodel.compute import Compute
from hwmodel.fabric import Fabric
from hwmodel.link import Link
from hwmodel.memory import L2, Hbm, StreamingMultiprocessors
from hwmodel.nccl import Nccl
from hwmodel.overheads import Overheads
from hwmodel.specs import SystemSpec
from hwmodel.switch import Switch
from hwmodel.warps import Warps


class Capability(enum.Enum):
    """Something that not every machine can do and some uses need."""

    MULTICAST = "multicast"
    """The switch copies a store to all GPUs of a fixed group."""
    REDUCTION = "reduction"
    """The switch adds up what a group of GPUs answers to one load."""
    DYNAMIC_MULTICAST = "dynamic-multicast"
    """Packets name their own targets. No switch on the market does this."""
    COPY_ENGINE = "copy-engine"
    """Transfers that occupy no SM."""
    SCALE_OUT = "scale-out"
    """More than one NVLink domain."""


@dataclass(frozen=True)
class System:
    """A machine that exists, or one that does not.

    Attributes
    ----------
    name
        Of the preset or file it came from.
    summary
        One line for people.
    num_gpus
        GPUs in use, all domains together.
    fabric, link, switch, sm, warps, l2, hbm, compute, attention, overheads, nccl
        The models; every GPU is like every other.
    spec
        The description with all sources, overrides applied.
    """

    name: str
    summary: str
    num_gpus: int
    fabric: Fabric
    link: Link
    switch: Switch
    sm: StreamingMultiprocessors
    warps: Warps
    l2: L2
    hbm: Hbm
    compute: Compute
    attention: Attention
    overheads: Overheads
    nccl: Nccl
    spec: SystemSpec

    @classmethod
    def from_spec(cls, spec: SystemSpec, num_gpus: int) -> System:
        """Build the first ``num_gpus`` GPUs of a description."""
        link = Link.from_spec(spec.link)
        fabric = Fabric.from_spec(spec, link, num_gpus)
        hbm = Hbm.from_spec(spec.hbm)
        store_ps = (
            fabric.uplink_latency_ps + fabric.downlink_latency_ps + fabric.write_visibility_ps
        )
        return cls(
            name=spec.name,
            summary=spec.summary,
            num_gpus=num_gpus,
            fabric=fabric,
            link=link,
            switch=Switch.from_spec(spec.switch, link, fabric.num_planes, fabric.gpus_per_domain),
            sm=StreamingMultiprocessors.from_spec(spec.gpu),
            warps=Warps.from_spec(spec),
            l2=L2.from_spec(spec.gpu),
            hbm=hbm,
            compute=Compute.from_spec(spec.compute, spec.gpu, hbm, spec.overheads),
            attention=Attention.from_spec(spec),
            overheads=Overheads.from_spec(spec.overheads, store_ps),
            nccl=Nccl.from_spec(spec.nccl),
            spec=spec,
        )

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Abilities of this machine beyond moving packets between GPUs."""
        has = {
            Capability.MULTICAST: self.switch.multicast,
            Capability.REDUCTION: self.switch.reduction,
            Capability.DYNAMIC_MULTICAST: self.switch.dynamic_multicast,
            Capability.COPY_ENGINE: self.spec.gpu.copy_engine.value,
            Capability.SCALE_OUT: self.fabric.num_domains > 1,
        }
        return frozenset(capability for capability, there in has.items() if there)

    def describe(self) -> dict[str, Any]:
        """Give all values that make this machine, sorted by dotted key, without sources.

        Plain numbers, strings, booleans and lists, for the provenance of a result;
        ``name`` and ``num_gpus`` (GPUs in use) are among them.
        """
        values: dict[str, Any] = {key: value for key, value, *_ in self.spec.rows()}
        values |= {"name": self.name, "num_gpus": self.num_gpus}
        return dict(sorted(values.items()))
