"""A preset file as a whole: its tables, what they must agree in, and the names of its keys.

Tables that only some machines have are absent from the others: what needs them is refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, Field, model_validator

from hwmodel.quantity import Quantity
from hwmodel.tables import (
    AiCoreSpec,
    AttentionSpec,
    CacheSpec,
    ComputeSpec,
    FabricSpec,
    GpuSpec,
    GroupsSpec,
    HbmSpec,
    HostSpec,
    LinkSpec,
    MeshSpec,
    NcclSpec,
    NetworkSpec,
    NicSpec,
    OverheadsSpec,
    PcieSpec,
    PowerSpec,
    SmSpec,
    SwitchSpec,
    WarpSpec,
)
from hwmodel.units import unit_of
from tracegen.shared.strict import StrictDocument

_SUM_BYTES = 4  # of an FP32 value


class SystemSpec(StrictDocument):
    """A whole preset file."""

    name: Annotated[str, Field(min_length=1)]
    summary: str
    fabric: FabricSpec
    link: LinkSpec
    switch: SwitchSpec
    gpu: GpuSpec
    sm: SmSpec | None = None
    cache: CacheSpec | None = None
    warp: WarpSpec | None = None
    ai_core: AiCoreSpec | None = None
    hbm: HbmSpec
    compute: ComputeSpec
    attention: AttentionSpec
    power: PowerSpec | None = None
    overheads: OverheadsSpec
    host: HostSpec | None = None
    nccl: NcclSpec | None = None
    pcie: PcieSpec
    nic: NicSpec
    network: NetworkSpec
    mesh: MeshSpec | None = None
    groups: GroupsSpec | None = None

    @model_validator(mode="after")
    def _ratios_are_to_something(self) -> Self:
        present = self.present()
        for key in present:
            spread = self.entry(key).spread
            leader = spread.removeprefix("as ") if isinstance(spread, str) else spread
            if leader != spread and (leader not in present or leader == key):
                message = f"{key}: spread {spread!r} names no other value"
                raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _has_one_platform(self) -> Self:
        cuda = self.warp is not None and self.nccl is not None
        neither = self.warp is None and self.nccl is None
        if not (cuda or neither) or (cuda and self.ai_core is not None):
            message = "a machine has the tables [warp] and [nccl], or [ai_core], or none of the three"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _tiles_fit_where_they_are_added_up(self) -> Self:
        if self.ai_core is None:
            return self
        room = self.ai_core.l0c_bytes.value
        for key in (key for key in self.present() if key.endswith("_blocks")):
            for rows, columns in self.entry(key).value:
                if rows * columns * _SUM_BYTES > room:
                    message = f"{key}: FP32 sums of {rows} x {columns} exceed ai_core.l0c_bytes = {room}"
                    raise ValueError(message)
        return self

    def present(self) -> list[str]:
        """Dotted keys of the tables that this machine has, sorted."""
        return [key for key in keys() if getattr(self, key.partition(".")[0]) is not None]

    def entry(self, key: str) -> Quantity[Any]:
        """Value of a dotted key, with its source."""
        section, _, leaf = key.partition(".")
        found: Quantity[Any] = getattr(getattr(self, section), leaf)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # Quantity[...] classes are made on the fly and cannot be found by name, which
        # pickle would want; a sweep sends systems to other processes.
        return SystemSpec.model_validate, (self.model_dump(),)

    def rows(self) -> list[tuple[str, Any, str, str, str]]:
        """Give every value as (dotted key, value, unit, source, confidence), sorted by key."""
        return [
            (key, entry.value, unit_of(key), entry.source, entry.confidence)
            for key in self.present()
            for entry in [self.entry(key)]
        ]


@cache
def sections() -> Mapping[str, type[BaseModel]]:
    """Tables of a preset file and the model of each, those included that not every machine has."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in SystemSpec.model_fields.items():
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                found[name] = one
    return MappingProxyType(found)


@cache
def _keys() -> tuple[str, ...]:
    return tuple(sorted(f"{section}.{key}" for section, model in sections().items() for key in model.model_fields))


def keys() -> list[str]:
    """All dotted keys that a preset may give and an override may change, sorted."""
    return list(_keys())


def words(key: str) -> tuple[str, ...]:
    """Texts that are values of a dotted key, such as an order's name; none for most keys."""
    section, _, leaf = key.partition(".")
    quantity = sections()[section].model_fields[leaf].annotation
    assert isinstance(quantity, type) and issubclass(quantity, BaseModel)
    choices = (quantity.model_fields["value"].annotation,)
    choices += get_args(choices[0])
    return tuple(word for one in choices if get_origin(one) is Literal for word in get_args(one))
