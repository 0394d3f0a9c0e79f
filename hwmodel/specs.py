"""Schema of a preset file: every key, its type, and the origin of the number.

One pydantic model a table of the file. There are no defaults: a description of a
machine is complete or refused, and nothing is assumed silently. Keys carry their
unit; values carry their source. Tables that only some machines have are absent from
the others: what needs them is refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hwmodel.units import unit_of

T = TypeVar("T")

#: How far a value can be trusted: ``high`` is measured or published and confirmed
#: twice, ``medium`` one credible measurement or vendor claim, ``low`` inferred or
#: from other hardware, ``recalled`` from memory of a publication, ``user`` set by hand.
Confidence = Literal["high", "medium", "low", "recalled", "user"]

# Wide enough for any machine, narrow enough that picoseconds of 10^12 bytes fit in int64.
Positive = Annotated[float, Field(ge=1e-3, le=1e9, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=1e-3, le=1)]
Count = Annotated[int, Field(ge=1, le=1 << 40)]
Units = Annotated[int, Field(ge=1, le=1 << 16)]  # GPUs, links, SMs: things one could count
NonNegativeInt = Annotated[int, Field(ge=0, le=1 << 16)]
Block = Annotated[list[Count], Field(min_length=2, max_length=2)]
Links = Annotated[list[NonNegativeInt], Field(min_length=1)]
Excess = Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]


RankOrder = Literal["by node", "round robin"]

_SUM_BYTES = 4  # of an FP32 value


class _Strict(BaseModel):
    """Unknown keys are errors, "8" is not 8, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Range(_Strict):
    """Where a value lies in nine cases of ten, in its own unit, as its source gives it."""

    low: Positive
    high: Positive


Spread = (
    Literal["exact", "held", "fitted", "rest", "by confidence"]
    | Annotated[str, Field(pattern=r"^as \w+\.\w+$")]
    | Range
)
"""How uncertain a value is; `hwmodel.draws` draws it.

``exact``: counted, defined, or published by the vendor. ``held``: a choice, such as the shapes of
tiles; another one is another machine. ``fitted``: to a table of measurements, whose remaining
errors say how uncertain all that is predicted with it is. ``rest``: what is left of a measured sum.
``by confidence``: no source gives a range, and that of the confidence is taken. ``as KEY``: it
keeps its ratio to another value. `Range`: as the source says.
"""


class Quantity(_Strict, Generic[T]):
    """One number of a preset with its source; presets of the package state each one's spread."""

    value: T
    source: Annotated[str, Field(min_length=4)]
    confidence: Confidence
    spread: Spread | None = None

    @model_validator(mode="after")
    def _value_lies_in_its_range(self) -> Self:
        if isinstance(self.spread, Range):
            if isinstance(self.value, bool) or not isinstance(self.value, int | float):
                message = 'what is not a number has no range; write spread = "held"'
                raise ValueError(message)
            if not self.spread.low <= self.value <= self.spread.high:
                message = f"{self.value} is not within {self.spread.low} to {self.spread.high}"
                raise ValueError(message)
        return self


class FabricSpec(_Strict):
    """GPUs, and the number of links to each switch plane."""

    num_gpus: Quantity[Units]
    """GPUs of one NVLink domain."""
    num_domains: Quantity[Units]
    """NVLink domains, joined by one NIC per GPU if more than one."""
    links_per_plane: Quantity[Links | Annotated[list[Links], Field(min_length=1)]]
    """Links of a GPU to each plane; one list for all GPUs, or one for each GPU of a domain."""
    rank_order: Quantity[RankOrder | list[NonNegativeInt]]
    """GPU of each rank: node after node, in turn over the nodes, or a list."""
    slow: Quantity[list[str]]
    """Shares of their rates that are left of parts: ``["nic 3 = 0.5", "leaf 1 = 0.25"]``; 0 where
    one is missing. ``gpu G`` is all of a GPU's ports to the switch of its domain, ``nic G`` the
    network card beside it, ``node N`` and ``rail R`` all cards of these, ``leaf L`` the ways of a
    leaf switch to the spine."""


class MeshSpec(_Strict):
    """Links of GPUs to one another; only of machines without switches."""

    links_per_pair: Quantity[Units]
    """Between any two GPUs of a domain."""


class GroupsSpec(_Strict):
    """Groups of GPUs of a domain, such as nodes behind a second tier of switches."""

    num_gpus: Quantity[Units]
    """Of a group."""
    bandwidth_GB_per_s: Quantity[NonNegative]
    """From one group to another, one direction, shared by all; 0 where nothing is shared."""
    latency_ns: Quantity[NonNegative]
    """Between groups, added to the way within one."""


class LinkSpec(_Strict):
    """NVLink: rate, latency of a hop, and the overhead of a packet."""

    links_per_gpu: Quantity[Units]
    bandwidth_GB_per_s: Quantity[Positive]
    """One link, one direction, data rate before packet overhead."""
    efficiency: Quantity[Ratio]
    """Share of the data rate left before packet overhead."""
    propagation_ns: Quantity[NonNegative]
    """GPU to switch or switch to GPU, interfaces included."""
    flit_bytes: Quantity[Count]
    header_flits: Quantity[NonNegativeInt]
    fan_out_efficiency: Quantity[Ratio]
    """Share of a port's rate that SMs reach when they store to, or load from, several peers."""
    scatter_efficiency: Quantity[Ratio]
    bulk_scatter_efficiency: Quantity[Ratio]
    """The same where all SMs store single rows to whatever peer is next."""
    byte_enable_flits: Quantity[NonNegativeInt]
    """Extra flits of a write whose last flit is not full."""
    sm_payload_bytes: Quantity[Count]
    copy_engine_payload_bytes: Quantity[Count]
    sm_read_request_flits: Quantity[NonNegative]
    sm_write_ack_flits: Quantity[NonNegative]
    copy_engine_read_request_flits: Quantity[NonNegative]
    copy_engine_write_ack_flits: Quantity[NonNegative]


class SwitchSpec(_Strict):
    """Abilities of the switch, and its buffers."""

    traversal_ns: Quantity[NonNegative]
    multicast: Quantity[bool]
    """One packet in, one out for each member of a fixed group."""
    dynamic_multicast: Quantity[bool]
    """The packet itself names its targets."""
    reduction: Quantity[bool]
    multicast_acks_merged: Quantity[bool]
    multimem_efficiency: Quantity[Ratio]
    """Share of a port's rate left for multicast and reduction traffic."""
    merge_ns: Quantity[NonNegative]
    """Latency added when the last contribution to a reduction arrives."""
    reduction_GFLOP_per_s: Quantity[NonNegative]
    """Additions of FP32 values of one plane; 0 adds as fast as values come."""
    reduction_buffer_bytes: Quantity[Count]
    """One port (one link)."""
    virtual_channels: Quantity[Count]
    """Of an input port; requests have half of them, responses the other half."""
    flits_per_channel: Quantity[NonNegativeInt]
    """Flits that one channel of one port holds; 0 is any number."""


class GpuSpec(_Strict):
    """The GPU seen from the fabric, and its SMs as movers of bytes."""

    num_sms: Quantity[Units]
    clock_GHz: Quantity[Positive]
    copy_engine: Quantity[bool]
    write_visibility_ns: Quantity[NonNegative]
    """From arrival of a posted store at the GPU until other SMs see it."""
    remote_read_access_ns: Quantity[NonNegative]
    """From arrival of a read request at the GPU until its answer leaves."""
    sm_push_GB_per_s: Quantity[Positive]
    """Bytes that an SM sends to peers and to its own GPU while it runs a push kernel."""
    sm_read_GB_per_s: Quantity[Positive]
    sm_write_GB_per_s: Quantity[Positive]
    l2_bytes: Quantity[Count]
    l2_bytes_per_clock: Quantity[Positive]
    """Read by all SMs together."""
    l2_latency_ns: Quantity[NonNegative]
    """A load that hits the L2 cache."""


class WarpSpec(_Strict):
    """Times of single warps, where they are the limit and not bytes per second.

    Only of machines that run CUDA.
    """

    scan_ns: Quantity[NonNegative]
    """Looking at one token's flag and going on."""
    row_ns: Quantity[NonNegative]
    """Beginning a row: its slot, its indices and weights."""
    round_ns: Quantity[NonNegative]
    """One round of unrolled copying, beside the latency of its loads."""
    reduce_step_ns: Quantity[NonNegative]
    """SM time to write 512 bytes of a sum."""
    reduce_source_ns: Quantity[NonNegative]
    """SM time to add 512 bytes of one source to a sum."""
    reduce_wait_ns: Quantity[NonNegative]
    """Waiting of one warp, not of its SM, for 512 bytes of one source of a sum."""
    bulk_ns: Quantity[NonNegative]
    """SM time of a bulk copy of 512 bytes, into its shared memory or out of it."""


class HbmSpec(_Strict):
    """Device memory."""

    capacity_MiB: Quantity[Count]
    """What a GPU's programs can allocate, all of them together."""
    peak_GB_per_s: Quantity[Positive]
    stream_efficiency: Quantity[Ratio]
    """Share of the peak at which a multiplication's operands stream in."""
    read_efficiency: Quantity[Ratio]
    """Share of the peak at which an elementwise kernel reads."""
    write_efficiency: Quantity[Ratio]
    """Share of the peak at which an elementwise kernel writes."""
    latency_ns: Quantity[NonNegative]


class ComputeSpec(_Strict):
    """Matrix multiplication as tiles on SMs."""

    bf16_peak_TFLOP_per_s: Quantity[Positive]
    fp8_peak_TFLOP_per_s: Quantity[Positive]
    fp32_peak_TFLOP_per_s: Quantity[Positive]
    """FP32 values multiplied as TF32 on tensor cores."""
    bf16_efficiency: Quantity[Ratio]
    """Of peak, inside a tile's main loop."""
    bf16_grouped_efficiency: Quantity[Ratio]
    """Of kernels for groups of rows, one for each expert."""
    fp8_efficiency: Quantity[Ratio]
    fp32_efficiency: Quantity[Ratio]
    mma_rows: Quantity[Count]
    """Rows of a tile are rounded up to this."""
    tile_overhead_ns: Quantity[NonNegative]
    """Filling the pipeline and storing the result of a tile."""
    fp8_absent_row_ns: Quantity[NonNegative]
    """For each row of a tile's loads that lies beyond the end of the matrix, and each 128 bytes of
    the inner dimension."""
    operand_bytes_per_clock: Quantity[Positive]
    """Into one SM."""
    shared_bytes_per_clock: Quantity[Positive]
    """Into and out of the shared memory of one SM."""
    cluster_tiles: Quantity[Units]
    """Neighbouring tiles of a kernel that load what they share from the L2 cache once."""
    bf16_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    bf16_grouped_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    bf16_grouped_whole_tiles: Quantity[bool]
    """Whether these multiply partial tiles as whole ones."""
    fp8_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    fp32_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    """Tile shapes (rows, columns) that kernels of this type come in."""
    fp8_scale_block: Quantity[Count]
    """Values that share one 4-byte scale."""


class AttentionSpec(_Strict):
    """Fused attention kernels, in BF16."""

    forward_efficiency: Quantity[Ratio]
    """Of BF16 peak, in the products of a prefill or training kernel on long sequences."""
    backward_efficiency: Quantity[Ratio]
    """The same of a training kernel's backward pass."""
    decode_efficiency: Quantity[Ratio]
    """Of BF16 peak, in the products of a decode kernel that they bind."""
    decode_stream_efficiency: Quantity[Ratio]
    """Of HBM peak, where a decode kernel is bound by reading the key-value cache."""
    tile_rows: Quantity[Units]
    """Queries of a tile."""
    tile_keys: Quantity[Units]
    """Keys of a tile."""


class OverheadsSpec(_Strict):
    """Costs of software around the work."""

    launch_us: Quantity[NonNegative]
    graph_launch_us: Quantity[NonNegative]
    kernel_gap_graph_us: Quantity[NonNegative]
    kernel_gap_stream_us: Quantity[NonNegative]
    small_kernel_us: Quantity[NonNegative]
    """Time of an elementwise kernel beside that of its bytes: from first load to last store."""
    row_copy_ns: Quantity[NonNegative]
    """Time that a kernel takes for each single row that it copies to another place, beside that of
    its bytes."""
    host_sync_us: Quantity[NonNegative]
    poll_pinned_us: Quantity[NonNegative]
    copy_engine_start_us: Quantity[NonNegative]
    grid_barrier_us: Quantity[NonNegative]
    barrier_base_ns: Quantity[NonNegative]
    barrier_per_peer_ns: Quantity[NonNegative]
    fence_us: Quantity[NonNegative]
    """Fence of system scope before what others wait for, such as the signal of a barrier."""
    poll_ns: Quantity[NonNegative]
    """Until a polling loop has seen a flag that is already visible."""


class NcclSpec(_Strict):
    """Kernels of NCCL on this chip; starts are counted from the start of a kernel.

    Machines that run CUDA have this table and `WarpSpec`, others neither.
    """

    ring_channels: Quantity[Units]
    ll_start_us: Quantity[NonNegative]
    """Until the first chunk of a collective leaves."""
    ll128_start_us: Quantity[NonNegative]
    simple_start_us: Quantity[NonNegative]
    ll_channel_GB_per_s: Quantity[Positive]
    """Data through the registers of one block."""
    ll128_channel_GB_per_s: Quantity[Positive]
    copy_GB_per_s: Quantity[Positive]
    """Data that one block copies out of its buffer under protocol Simple."""
    nvls_start_us: Quantity[NonNegative]
    """Until the first access of an all-reduce in the switch."""
    pair_channels: Quantity[Units]
    """Of the kernel that sends to, and receives from, single peers."""
    pair_ll_start_us: Quantity[NonNegative]
    pair_simple_start_us: Quantity[NonNegative]
    proxy_step_us: Quantity[NonNegative]
    """Of the host's thread for a write that it posts, a buffer that it offers, or a completion."""


class AiCoreSpec(_Strict):
    """What a core of an Ascend NPU has beside its cube unit, which stands for an SM's tensor cores.

    Only of machines that run CANN. Their num_sms counts AI cores: a cube core with its vector
    cores, each of which has an instruction stream of its own.
    """

    vector_cores: Quantity[Units]
    """Of each AI core. They cast, add and move rows, while the cube core multiplies."""
    l0c_bytes: Quantity[Count]
    """Where the cube unit adds up a tile, in FP32 values."""
    sync_all_us: Quantity[NonNegative]
    """A barrier of all vector cores of an NPU inside a kernel."""
    quantised_row_us: Quantity[NonNegative]
    """A vector core, for a row that it loads, casts to one byte a value and stores, beside its
    bytes: loading, casting and storing wait for one another."""


class PcieSpec(_Strict):
    """Between a GPU and its network card."""

    bandwidth_GB_per_s: Quantity[Positive]
    """Data in one direction, as reached."""
    latency_ns: Quantity[NonNegative]
    """One way."""


class NicSpec(_Strict):
    """Scale-out: a network card for each GPU."""

    bandwidth_GB_per_s: Quantity[Positive]
    efficiency: Quantity[Ratio]
    post_ns: Quantity[NonNegative]
    """What a warp does for a write: the entry of the work queue, fences, the signal behind the
    data; and the poll at the other end."""
    write_ns: Quantity[NonNegative]
    """Least time of the card for each write, however few its bytes: one over its message rate."""


class NetworkSpec(_Strict):
    """Leaf switches that the network cards hang on, and the spine that joins these."""

    rails: Quantity[Units]
    """Leaf switches of a group of domains; card i of a domain is on rail i modulo this."""
    domains_per_leaf: Quantity[Units]
    """Domains whose cards share leaf switches: a group."""
    oversubscription: Quantity[Excess]
    """Rate of a leaf's cards by that of its uplinks; 1 is non-blocking."""
    leaf_ns: Quantity[NonNegative]
    """From card to card over one leaf switch, the cards' own time included."""
    spine_ns: Quantity[NonNegative]
    """Added where the way leads over the spine: leaf, spine, leaf."""
    packet_bytes: Quantity[Count]


class SystemSpec(_Strict):
    """A whole preset file."""

    name: Annotated[str, Field(min_length=1)]
    summary: str
    fabric: FabricSpec
    link: LinkSpec
    switch: SwitchSpec
    gpu: GpuSpec
    warp: WarpSpec | None = None
    ai_core: AiCoreSpec | None = None
    hbm: HbmSpec
    compute: ComputeSpec
    attention: AttentionSpec
    overheads: OverheadsSpec
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
        if (self.ai_core is None) != cuda or not (cuda or neither):
            message = "a machine has the tables [warp] and [nccl], or [ai_core] and neither of them"
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
                    message = (
                        f"{key}: FP32 sums of {rows} x {columns} exceed ai_core.l0c_bytes = {room}"
                    )
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
    return tuple(
        sorted(
            f"{section}.{key}"
            for section, model in sections().items()
            for key in model.model_fields
        )
    )


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
