"""A whole machine: a description, and the models made from it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from hwmodel.ai_core import AiCore
from hwmodel.attention import AttentionKernels
from hwmodel.compute import Compute
from hwmodel.errors import UserError
from hwmodel.fabric import Fabric
from hwmodel.link import Link
from hwmodel.memory import Hbm, L2Cache, StreamingMultiprocessors
from hwmodel.nccl import Nccl
from hwmodel.overheads import Overheads
from hwmodel.residency import BlockFootprint, SmLimits
from hwmodel.specs import SystemSpec
from hwmodel.switch import Switch
from hwmodel.tables import HostSpec
from hwmodel.warps import Warps
from tracegen.shared.display.exhibit import Exhibit


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
    CUDA = "cuda"
    """Runs libraries that are written in CUDA, whose costs are known ([nccl], [warp])."""
    CANN = "cann"
    """Runs those of Ascend's CANN ([ai_core])."""


@dataclass(frozen=True)
class System(Exhibit):
    """A machine, real or proposed.

    Attributes
    ----------
    name
        Of the preset or file it came from.
    summary
        One line for people.
    num_gpus
        GPUs in use, all domains together.
    fabric, link, switch, sm, l2, hbm, compute, attention, overheads
        The models; every GPU is like every other.
    ai_core
        What an Ascend NPU's cores have beside the cube unit; None on others.
    spec
        The description with all sources, overrides applied.
    """

    PAGE: ClassVar[str] = "hwmodel.page:page"

    name: str
    summary: str
    num_gpus: int
    fabric: Fabric
    link: Link
    switch: Switch
    sm: StreamingMultiprocessors
    ai_core: AiCore | None
    l2: L2Cache
    hbm: Hbm
    compute: Compute
    attention: AttentionKernels
    overheads: Overheads
    spec: SystemSpec
    _sm_limits: SmLimits | None
    _warps: Warps | None
    _nccl: Nccl | None

    @classmethod
    def from_spec(cls, spec: SystemSpec, num_gpus: int) -> System:
        """Build the first ``num_gpus`` GPUs of a description."""
        link = Link.from_spec(spec.link)
        fabric = Fabric.from_spec(spec, link, num_gpus)
        hbm = Hbm.from_spec(spec.hbm)
        store_ps = fabric.uplink_latency_ps + fabric.downlink_latency_ps + fabric.write_visibility_ps
        return cls(
            name=spec.name,
            summary=spec.summary,
            num_gpus=num_gpus,
            fabric=fabric,
            link=link,
            switch=Switch.from_spec(spec.switch, link, fabric.num_planes, fabric.gpus_per_domain),
            sm=StreamingMultiprocessors.from_spec(spec.gpu),
            ai_core=None if spec.ai_core is None else AiCore.from_spec(spec.ai_core),
            l2=L2Cache.from_spec(spec.gpu, spec.cache),
            hbm=hbm,
            compute=Compute.from_spec(spec.compute, spec.gpu, hbm, spec.overheads, spec.ai_core),
            attention=AttentionKernels.from_spec(spec),
            overheads=Overheads.from_spec(spec.overheads, store_ps),
            spec=spec,
            _sm_limits=None if spec.sm is None else SmLimits.from_spec(spec.sm),
            _warps=Warps.from_spec(spec) if spec.warp is not None else None,
            _nccl=Nccl.from_spec(spec.nccl) if spec.nccl is not None else None,
        )

    def resident_blocks(self, block: BlockFootprint) -> int:
        """Count the blocks of a kernel that are on an SM at a time; an AI core runs one.

        Raises
        ------
        UserError
            If not even one fits.
        """
        return 1 if self._sm_limits is None else self._sm_limits.resident_blocks(block)

    @property
    def host(self) -> HostSpec:
        """Hosts, which launch kernels.

        Raises
        ------
        UserError
            If nothing is known of it.
        """
        if self.spec.host is None:
            message = f"system {self.name!r} has no table [host]: what software costs is not known"
            raise UserError(message)
        return self.spec.host

    @property
    def nccl(self) -> Nccl:
        """NCCL on its GPUs.

        Raises
        ------
        UserError
            If the machine does not run CUDA.
        """
        if self._nccl is None:
            message = f"system {self.name!r} does not run CUDA, and so has no NCCL"
            raise UserError(message)
        return self._nccl

    @property
    def warps(self) -> Warps:
        """Warps of its GPUs.

        Raises
        ------
        UserError
            If the machine does not run CUDA.
        """
        if self._warps is None:
            message = f"system {self.name!r} does not run CUDA: its cores have no warps"
            raise UserError(message)
        return self._warps

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Abilities of this machine beyond moving packets between GPUs."""
        has = {
            Capability.MULTICAST: self.switch.multicast,
            Capability.REDUCTION: self.switch.reduction,
            Capability.DYNAMIC_MULTICAST: self.switch.dynamic_multicast,
            Capability.COPY_ENGINE: self.spec.gpu.copy_engine.value,
            Capability.SCALE_OUT: self.fabric.num_domains > 1,
            Capability.CUDA: self._nccl is not None,
            Capability.CANN: self.ai_core is not None,
        }
        return frozenset(capability for capability, there in has.items() if there)

    def _rows(self) -> list[dict[str, Any]]:
        """One for each value; what is no number, or several, has a text alone."""
        rows = []
        for key, value, unit, source, confidence in self.spec.rows():
            row: dict[str, Any] = {"key": key, "text": str(value), "unit": unit}
            if isinstance(value, int | float) and not isinstance(value, bool):
                row["value"] = float(value)
            rows.append({**row, "confidence": confidence, "source": source})
        return rows

    def describe(self) -> dict[str, Any]:
        """Give all values that make this machine, sorted by dotted key, without sources.

        Plain numbers, strings, booleans and lists, for the provenance of a result;
        ``name`` and ``num_gpus`` (GPUs in use) are among them.
        """
        return dict(self._values)

    @cached_property
    def _values(self) -> dict[str, Any]:
        """Cached result of `describe`; many results of one machine ask."""
        values: dict[str, Any] = {key: value for key, value, *_ in self.spec.rows()}
        values |= {"name": self.name, "num_gpus": self.num_gpus}
        return dict(sorted(values.items()))
