"""Tables of a preset file: one pydantic model for each, every key and its type.

There are no defaults: a description of a machine is complete or refused, and nothing is assumed
silently. Keys carry their unit; values carry their source. The module is long because it is all
that a preset can say, read in one place.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwmodel.quantity import (
    Block,
    Count,
    Excess,
    Links,
    NonNegative,
    NonNegativeInt,
    Positive,
    Quantity,
    Ratio,
    Units,
)
from tracegen.shared.strict import StrictDocument

RankOrder = Literal["by node", "round robin"]


class FabricSpec(StrictDocument):
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


class MeshSpec(StrictDocument):
    """Links of GPUs to one another; only of machines without switches."""

    links_per_pair: Quantity[Units]
    """Between any two GPUs of a domain."""


class GroupsSpec(StrictDocument):
    """Groups of GPUs of a domain, such as nodes behind a second tier of switches."""

    num_gpus: Quantity[Units]
    """Of a group."""
    bandwidth_GB_per_s: Quantity[NonNegative]
    """From one group to another, one direction, shared by all; 0 where nothing is shared."""
    latency_ns: Quantity[NonNegative]
    """Between groups, added to the way within one."""


class LinkSpec(StrictDocument):
    """NVLink: rate, latency of a hop, and the overhead of a packet."""

    links_per_gpu: Quantity[Units]
    """Of one GPU, over all planes."""
    bandwidth_GB_per_s: Quantity[Positive]
    """One link, one direction, data rate before packet overhead."""
    efficiency: Quantity[Ratio]
    """Share of the data rate left before packet overhead."""
    propagation_ns: Quantity[NonNegative]
    """GPU to switch or switch to GPU, interfaces included."""
    flit_bytes: Quantity[Count]
    """Unit of the wire: headers and data are whole flits."""
    header_flits: Quantity[NonNegativeInt]
    """Of each packet, whatever it carries."""
    fan_out_efficiency: Quantity[Ratio]
    """Share of a port's rate that SMs reach when they store to, or load from, several peers."""
    scatter_efficiency: Quantity[Ratio]
    """The same where all SMs store single rows, by warps, to whatever peer is next."""
    bulk_scatter_efficiency: Quantity[Ratio]
    """The same where all SMs store single rows to whatever peer is next."""
    byte_enable_flits: Quantity[NonNegativeInt]
    """Extra flits of a write whose last flit is not full."""
    sm_payload_bytes: Quantity[Count]
    """Most data of a packet that an SM's load or store makes."""
    copy_engine_payload_bytes: Quantity[Count]
    """Most data of a packet that a copy engine makes."""
    sm_read_request_flits: Quantity[NonNegative]
    """On the way to the owner, for each packet of data that an SM loads."""
    sm_write_ack_flits: Quantity[NonNegative]
    """On the way back, for each packet of data that an SM stores."""
    copy_engine_read_request_flits: Quantity[NonNegative]
    """On the way to the owner, for each packet that a copy engine reads."""
    copy_engine_write_ack_flits: Quantity[NonNegative]
    """On the way back, for each packet of data that a copy engine writes."""


class SwitchSpec(StrictDocument):
    """Abilities of the switch, and its buffers."""

    traversal_ns: Quantity[NonNegative]
    """From a port of the switch to another one, where nobody is in the way."""
    multicast: Quantity[bool]
    """One packet in, one out for each member of a fixed group."""
    dynamic_multicast: Quantity[bool]
    """The packet itself names its targets."""
    reduction: Quantity[bool]
    """One load in, the sum of what the members of a fixed group hold back."""
    multicast_acks_merged: Quantity[bool]
    """Whether the sender of a multicast gets one acknowledgement, not one of each member."""
    multimem_efficiency: Quantity[Ratio]
    """Share of a port's rate left for multicast and reduction traffic."""
    merge_ns: Quantity[NonNegative]
    """Latency added when the last contribution to a reduction arrives."""
    multicast_ns: Quantity[NonNegative]
    """Latency added to a store that the switch copies."""
    multicast_release_ns: Quantity[NonNegative]
    """Until a fence behind multicast stores is through, from when they have been acknowledged."""
    reduction_GFLOP_per_s: Quantity[NonNegative]
    """Additions of FP32 values of one plane; 0 adds as fast as values come."""
    reduction_buffer_bytes: Quantity[Count]
    """One port (one link)."""
    virtual_channels: Quantity[Count]
    """Of an input port; requests have half of them, responses the other half."""
    flits_per_channel: Quantity[NonNegativeInt]
    """Flits that one channel of one port holds; 0 is any number."""


class GpuSpec(StrictDocument):
    """The GPU seen from the fabric, and its SMs as movers of bytes."""

    num_sms: Quantity[Units]
    """Streaming multiprocessors that kernels can use; AI cores of an Ascend NPU."""
    clock_GHz: Quantity[Positive]
    """What the SMs sustain under load; what is given per clock is at this clock."""
    copy_engine: Quantity[bool]
    """Whether copies can be made without an SM."""
    write_visibility_ns: Quantity[NonNegative]
    """From arrival of a posted store at the GPU until other SMs see it."""
    remote_read_access_ns: Quantity[NonNegative]
    """From arrival of a read request at the GPU until its answer leaves."""
    sm_push_GB_per_s: Quantity[Positive]
    """Bytes that an SM sends to peers and to its own GPU while it runs a push kernel."""
    sm_read_GB_per_s: Quantity[Positive]
    """Bytes that one SM can load from its own GPU's memory."""
    sm_write_GB_per_s: Quantity[Positive]
    """Bytes that one SM can store to its own GPU's memory."""
    l2_bytes: Quantity[Count]
    """Size of the L2 cache, which all SMs share."""
    l2_bytes_per_clock: Quantity[Positive]
    """Read by all SMs together."""
    l2_latency_ns: Quantity[NonNegative]
    """A load that hits the L2 cache."""


class SmSpec(StrictDocument):
    """Resources that the thread blocks resident on an SM share, and the largest number of blocks.

    Only of machines that run CUDA: an AI core runs one block.
    """

    registers: Quantity[Count]
    """Of 32 bits, of all partitions together."""
    partitions: Quantity[Units]
    """Parts of an SM that have as many registers each, and the warps that these are enough for."""
    register_unit: Quantity[Units]
    """A warp gets registers in multiples of it."""
    shared_bytes: Quantity[Count]
    """Shared memory of all blocks together."""
    block_shared_bytes: Quantity[Count]
    """Most shared memory that one block can have."""
    reserved_shared_bytes: Quantity[Count]
    """Shared memory of each block that CUDA keeps for itself."""
    threads: Quantity[Units]
    """Of all blocks together."""
    blocks: Quantity[Units]
    """Resident at a time, however small."""


class CacheSpec(StrictDocument):
    """Policy by which the L2 cache holds tiles' operands.

    A machine without this table holds all that its cache has room for, and a tile's blocks are
    there as a whole from its start.
    """

    kept_share: Quantity[Ratio]
    """Share of the cache that stays when all SMs read it again and again: half of it or less where
    each of its two halves keeps a copy for its own SMs, 1 where nobody has measured it."""
    slices: Quantity[Units]
    """Equal parts of the inner dimension in which a tile reads its blocks, one after the other; 1
    reads them whole. The model's grain: 2 give what 8 give, and cost a quarter."""


class WarpSpec(StrictDocument):
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
    choice_ns: Quantity[NonNegative]
    """A row of one of a token's choices beside its bytes, as a slot and a release of the GPU."""
    release_ns: Quantity[NonNegative]
    """A release of system scope behind stores to peers, for each of them, behind the acknowledgement."""


class HbmSpec(StrictDocument):
    """Device memory."""

    capacity_MiB: Quantity[Count]
    """What a GPU's programs can allocate, all of them together."""
    peak_GB_per_s: Quantity[Positive]
    """Reads and writes together, as sold."""
    stream_efficiency: Quantity[Ratio]
    """Share of the peak at which a multiplication's operands stream in."""
    read_efficiency: Quantity[Ratio]
    """Share of the peak at which an elementwise kernel reads."""
    write_efficiency: Quantity[Ratio]
    """Share of the peak at which an elementwise kernel writes."""
    latency_ns: Quantity[NonNegative]
    """Of a load that misses all caches."""


class ComputeSpec(StrictDocument):
    """Matrix multiplication as tiles on SMs."""

    bf16_peak_TFLOP_per_s: Quantity[Positive]
    """All SMs together, without sparsity, as sold."""
    fp8_peak_TFLOP_per_s: Quantity[Positive]
    """Likewise, of FP8 values."""
    fp4_peak_TFLOP_per_s: Quantity[NonNegative]
    """Likewise, of FP4 values with scales, at FP8's efficiency; 0 where there are none."""
    fp4_kinds: Quantity[list[Literal["mxfp4", "nvfp4"]]]
    """Kinds of FP4 values, by their scales, that tensor cores multiply."""
    fp32_peak_TFLOP_per_s: Quantity[Positive]
    """FP32 values multiplied as TF32 on tensor cores."""
    bf16_efficiency: Quantity[Ratio]
    """Of peak, inside a tile's main loop."""
    bf16_grouped_efficiency: Quantity[Ratio]
    """Of kernels for groups of rows, one for each expert."""
    fp8_efficiency: Quantity[Ratio]
    """Of the FP8 peak, inside a tile's main loop."""
    fp8_rows_efficiency: Quantity[Ratio]
    """The same where both operands have a scale for each 128 values of a row, as in gradients of
    weights."""
    fp8_tensor_efficiency: Quantity[Ratio]
    """The same where each operand has one scale."""
    fp32_efficiency: Quantity[Ratio]
    """Of the peak of TF32, inside a tile's main loop."""
    mma_rows: Quantity[Count]
    """Rows of a tile are rounded up to this."""
    tile_overhead_ns: Quantity[NonNegative]
    """Filling the pipeline and storing the result of a tile."""
    fp8_absent_row_ns: Quantity[NonNegative]
    """For each row of a tile's loads that lies beyond the end of the matrix, and each 128 bytes of
    the inner dimension."""
    fp8_step_ns: Quantity[NonNegative]
    """A warpgroup's wait in each step of an FP8 tile of one matrix, beside its own products and sums; 0
    where sums of several steps stay in the tensor cores."""
    operand_bytes_per_clock: Quantity[Positive]
    """From the L2 cache into the shared memory of one SM."""
    register_bytes_per_clock: Quantity[Positive]
    """From the L2 cache into the registers of one SM."""
    mma_sync_efficiency: Quantity[Ratio]
    """Of the peak, what products by the warps' instruction reach."""
    shared_bytes_per_clock: Quantity[Positive]
    """Into and out of the shared memory of one SM."""
    multiplication_clocks: Quantity[NonNegative]
    """Of one SM, for an FP32 addition or multiplication of one lane of its warps."""
    special_function_clocks: Quantity[NonNegative]
    """Of one SM, for an exponential or a reciprocal of one lane of its warps."""
    cluster_tiles: Quantity[Units]
    """Neighbouring tiles of a kernel that load what they share from the L2 cache once."""
    accumulators: Quantity[Units]
    """Tiles whose sums an SM has room for; with two, one is stored while the next is multiplied."""
    bf16_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    """Tile shapes (rows, columns) that kernels of this type come in."""
    bf16_grouped_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    """Tile shapes of kernels for groups of rows."""
    bf16_grouped_whole_tiles: Quantity[bool]
    """Whether these multiply partial tiles as whole ones."""
    fp8_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    """Tile shapes of kernels of this type for groups of rows."""
    fp8_matrix_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    """Tile shapes of those for one matrix."""
    fp32_blocks: Quantity[Annotated[list[Block], Field(min_length=1)]]
    """Tile shapes of kernels of this type."""
    fp8_scale_block: Quantity[Count]
    """Values that share one 4-byte scale."""


class AttentionSpec(StrictDocument):
    """Fused attention kernels, in BF16."""

    forward_efficiency: Quantity[Ratio]
    """Of BF16 peak, in the products of a prefill or training kernel, exponentials aside."""
    backward_efficiency: Quantity[Ratio]
    """The same of a training kernel's backward pass."""
    exposed_exponentials: Quantity[NonNegative]
    """Share of a score's exponential, at the rate of special functions, that no product hides."""
    block_ns: Quantity[NonNegative]
    """An SM's time for a tile of queries beside its products and exponentials; 0 where efficiencies
    are those of whole kernels, the wait for the last tiles included."""
    decode_efficiency: Quantity[Ratio]
    """Of BF16 peak, in the products of a decode kernel that they bind."""
    decode_stream_efficiency: Quantity[Ratio]
    """Of HBM peak, where a decode kernel is bound by reading the key-value cache."""
    tile_rows: Quantity[Units]
    """Queries of a tile."""
    tile_keys: Quantity[Units]
    """Keys of a tile."""


class PowerSpec(StrictDocument):
    """Power of a GPU, and what its limit is spent on."""

    limit_W: Quantity[NonNegative]
    """Mean power that the board keeps by its clock; 0 where the rest is not known."""
    base_W: Quantity[NonNegative]
    """What it draws with nothing to do, its clock being up."""
    hbm_pJ_per_byte: Quantity[NonNegative]
    """Energy of a byte of device memory, read or written, on top."""
    bf16_pJ_per_flop: Quantity[NonNegative]
    """Energy of an operation of BF16 products at ``gpu.clock_GHz``, with its operands' way."""
    fp8_pJ_per_flop: Quantity[NonNegative]
    """The same of FP8."""
    most_GHz: Quantity[Positive]
    """Highest clock of the SMs, at which attention alone runs."""


class OverheadsSpec(StrictDocument):
    """Costs of software around the work.

    A new key has a reader in overheads.py, a method of `Costs` (replay/model/machine/times.py), and a line in each
    preset without `base`.
    """

    launch_us: Quantity[NonNegative]
    """Host time of launching a kernel, at whose end it starts on an idle GPU."""
    graph_launch_us: Quantity[NonNegative]
    """Host time of launching a CUDA graph, however many kernels it has."""
    kernel_gap_graph_us: Quantity[NonNegative]
    """Between two dependent kernels of a CUDA graph."""
    kernel_gap_stream_us: Quantity[NonNegative]
    """Between two dependent kernels of a stream, both launched ahead of time."""
    small_kernel_us: Quantity[NonNegative]
    """Time of an elementwise kernel beside that of its bytes: from first load to last store.

    Each pays it once, permutes and other copies of rows by kernels too.
    """
    row_copy_ns: Quantity[NonNegative]
    """Time that a kernel takes for each single row that it copies to another place, beside that of
    its bytes."""
    host_sync_us: Quantity[NonNegative]
    """A small copy from device to host and the wait of the host for it."""
    poll_pinned_us: Quantity[NonNegative]
    """From a GPU's store to pinned host memory until a host that polls has seen it."""
    copy_engine_start_us: Quantity[NonNegative]
    """Starting one copy on a copy engine."""
    grid_barrier_us: Quantity[NonNegative]
    """A barrier of all thread blocks of a kernel on one GPU."""
    barrier_base_ns: Quantity[NonNegative]
    """A barrier of two GPUs within running kernels, from when the last one arrives.

    A flag (store, way, visibility, poll) is in it; an acknowledgement of stores before it is not, nor
    is a launch. Where only whole kernels were measured (MI300X, MI355X) all of these are in it.
    """
    barrier_per_peer_ns: Quantity[NonNegative]
    """Added for each further GPU of that barrier."""
    fence_us: Quantity[NonNegative]
    """Fence of system scope in DeepEP's notify kernels before they tell others of whatever was written.

    Fitted to whole calls of these, where there are any: beside fences of system scope it holds what
    else such a call pays once, as waits of streams and a cooperative launch.
    """
    poll_ns: Quantity[NonNegative]
    """Until a polling loop has seen a flag that is already visible."""


class HostSpec(StrictDocument):
    """The processor that launches kernels, beside `OverheadsSpec`."""

    processor: Quantity[str]
    """What it is called."""
    speed: Quantity[Positive]
    """How many times as fast it runs what software stacks do around a launch as the Xeon on which
    their costs were measured (`replay.model.work.stacks`)."""
    queue_launches: Quantity[Units]
    """Kernels that are launched and have not begun, at most: the next launch waits."""
    locked_add_ns: Quantity[NonNegative]
    """How long an addition to memory that it does not cache locks the bus of its node."""


class NcclSpec(StrictDocument):
    """Kernels of NCCL on this chip; starts are counted from the start of a kernel.

    Machines that run CUDA have this table and `WarpSpec`, others neither.
    """

    ring_channels: Quantity[Units]
    """Of rings and trees; a channel is one thread block, which has an SM."""
    ll_start_us: Quantity[NonNegative]
    """Until the first chunk leaves under protocol LL, which has a flag beside every 4 bytes."""
    ll128_start_us: Quantity[NonNegative]
    """The same under protocol LL128, which has a flag in every 128 bytes."""
    simple_start_us: Quantity[NonNegative]
    """The same under protocol Simple, which fences plain data."""
    ll_channel_GB_per_s: Quantity[Positive]
    """Data through the registers of one block, under protocol LL."""
    ll128_channel_GB_per_s: Quantity[Positive]
    """The same under protocol LL128."""
    copy_GB_per_s: Quantity[Positive]
    """Data that one block copies out of its buffer under protocol Simple."""
    nvls_start_us: Quantity[NonNegative]
    """Until the first access of an all-reduce in the switch."""
    nvls_channels: Quantity[Units]
    """Of collectives in the switch."""
    pair_channels: Quantity[Units]
    """Of the kernel that sends to, and receives from, single peers."""
    pair_ll_start_us: Quantity[NonNegative]
    """Until the first chunk leaves that kernel, under protocol LL."""
    pair_simple_start_us: Quantity[NonNegative]
    """Until the first chunk leaves that kernel, under protocol Simple."""
    proxy_step_us: Quantity[NonNegative]
    """Of the host's thread for a write that it posts, a buffer that it offers, or a completion."""


class AiCoreSpec(StrictDocument):
    """Units of an Ascend NPU's core beside its cube unit, which stands for an SM's tensor cores.

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
    num_reads: Quantity[Units]
    """That a cube core has under way at a time."""
    read_bytes: Quantity[Units]
    """Most that one read asks for, of values that lie side by side."""


class PcieSpec(StrictDocument):
    """PCIe between a GPU and its network card."""

    bandwidth_GB_per_s: Quantity[Positive]
    """Data in one direction, as reached."""
    latency_ns: Quantity[NonNegative]
    """One way."""


class NicSpec(StrictDocument):
    """Scale-out: a network card for each GPU."""

    bandwidth_GB_per_s: Quantity[Positive]
    """One card, one direction, as sold."""
    efficiency: Quantity[Ratio]
    """Share of it that data reach."""
    post_ns: Quantity[NonNegative]
    """What a warp does for a write: the entry of the work queue, fences, the signal behind the
    data; and the poll at the other end."""
    write_ns: Quantity[NonNegative]
    """Least time of the card for each write, however few its bytes: one over its message rate."""


class NetworkSpec(StrictDocument):
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
    """Most data of a packet."""
