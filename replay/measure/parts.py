"""The parts that measures are made of: phases, ports, tokens, bounds, paths, mechanisms.

Times are microseconds (exact multiples of a picosecond), bytes are whole numbers, and lists have
one entry per GPU. The module is long because it is the schema of results, read in one place.
"""

from __future__ import annotations

from pydantic import Field

from tracegen.shared.strict import Strict


class Routing(Strict):
    """Demands of the routing on a layer, or their mean over several layers.

    Attributes
    ----------
    num_tokens, num_pairs, num_copies
        Tokens, (token, expert) pairs, and (token, GPU) copies.
    mean_distinct_ranks, mean_distinct_remote_ranks
        GPUs that host an expert of a token, with and without the token's own GPU.
    mean_remote_pairs
        Experts of a token on other GPUs than its own.
    rank_imbalance
        Pairs of the busiest GPU over the mean.
    """

    num_tokens: float
    num_pairs: float
    num_copies: float
    mean_distinct_ranks: float
    mean_distinct_remote_ranks: float
    mean_remote_pairs: float
    rank_imbalance: float


class BufferBytes(Strict):
    """One buffer of a layer: its bytes on each GPU.

    Attributes
    ----------
    stays
        Whether it is kept from layer to layer.
    source
        Where its size is from, if it is not the scheme's own source.
    """

    name: str
    bytes: list[int]
    stays: bool
    source: str


class Memory(Strict):
    """Device memory of a layer on each GPU, every buffer as if it were there until the layer ends.

    Attributes
    ----------
    buffers
        Of the scheme, and what the experts write.
    token_bytes
        The GPU's own tokens, and their sums.
    weight_bytes
        Weights of the GPU's routed experts in this layer.
    total_bytes
        All of these.
    """

    buffers: list[BufferBytes]
    token_bytes: list[int]
    weight_bytes: list[int]
    total_bytes: list[int]


class Room(Strict):
    """Memory of a GPU for a layer beside the routed experts of all layers.

    Attention, dense layers, the cache of keys and values, and what training keeps come on top.

    Attributes
    ----------
    capacity_bytes
        What a GPU has.
    num_layers
        MoE layers of the model; each is taken to have as many experts on a GPU as the one replayed.
    needed_bytes
        Of the GPU that needs most: one layer, and the weights of the others.
    """

    capacity_bytes: int
    num_layers: int
    needed_bytes: int


class PhaseTimes(Strict):
    """First start and last end of a phase, and for how long something of it was in service."""

    start_us: float
    end_us: float
    busy_us: float


class PortBytes(Strict):
    """Bytes over every GPU's port, by direction: uplink GPU to switch, downlink switch to GPU."""

    uplink: list[int]
    downlink: list[int]


class NetworkPort(Strict):
    """One port of the network between NVLink domains.

    Attributes
    ----------
    name
        Such as ``nic-out 3``, the card beside GPU 3, or ``leaf-up 1``, the ways of a leaf switch to
        the spine.
    leaf
        Leaf switch that it belongs to, or that its card hangs on.
    payload_bytes, wire_bytes
        Of dispatch and of combine.
    utilisation
        Busy time over makespan.
    """

    name: str
    leaf: int
    payload_bytes: dict[str, int]
    wire_bytes: dict[str, int]
    utilisation: float


class Rail(Strict):
    """All network cards of a leaf switch.

    Attributes
    ----------
    sent_bytes, received_bytes
        Wire bytes of these cards together, dispatch and combine.
    utilisation
        Mean over the cards, of the direction that is busier.
    """

    leaf: int
    num_cards: int
    sent_bytes: int
    received_bytes: int
    utilisation: float


class NetworkLoad(Strict):
    """Traffic of the network between NVLink domains.

    Attributes
    ----------
    ports
        By class: ``pcie-out``, ``nic-out``, ``leaf-up``, ``leaf-down``, ``nic-in``, ``pcie-in``.
        Ports that no message passes are left out.
    rails
        By leaf switch.
    busiest_rail
        Place in `rails` of the one that carries most, the first of equals.
    """

    ports: dict[str, list[NetworkPort]]
    rails: list[Rail]
    busiest_rail: int


class BusiestPort(Strict):
    """The port in service longest in a phase, or in the whole layer.

    Another port may carry as many bytes: one that stores to several peers serves them more slowly.
    """

    direction: str
    gpu: int
    payload_bytes: int
    wire_bytes: int
    busy_us: float


class Utilisation(Strict):
    """Busy time of a class of resources over the layer's time."""

    mean: float = Field(ge=0, le=1)
    max: float = Field(ge=0, le=1)


class UtilisationOverTime(Strict):
    """Share of each class of resources in service, window by window.

    Attributes
    ----------
    window_us
        Length of a window; the first begins at 0, the last may reach past the end.
    groups
        For each class, the share (0 to 1) of all its servers in each window.
    """

    window_us: float
    groups: dict[str, list[float]]


class TokenLatency(Strict):
    """Time of the tokens until they are combined, from the start of their dispatch or the layer's.

    Attributes
    ----------
    num_tokens
        Tokens with at least one expert; the others have no way to go.
    """

    num_tokens: int
    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


class WaitTimes(Strict):
    """Time of each GPU in which it does not compute, by what it waits for; the first that holds.

    Attributes
    ----------
    wires_us
        Something of its own is under way: a message that leaves or reaches it, acknowledgements
        left out, or its SMs and memory copy rows.
    imbalance_us
        Nothing of its own is under way, and another GPU computes, begins a kernel or moves rows.
    latency_us
        No GPU does: barriers, flags, waits of hosts.
    """

    wires_us: list[float]
    imbalance_us: list[float]
    latency_us: list[float]

    @property
    def total_us(self) -> list[float]:
        """All of it, for each GPU."""
        parts = (self.wires_us, self.imbalance_us, self.latency_us)
        return [sum(of_gpu) for of_gpu in zip(*parts, strict=True)]


class Exposure(Strict):
    """Exposed communication, by what it waits for.

    Attributes
    ----------
    by_time
        Parts of `Measures.exposed_communication_us_per_gpu`: instants in which nothing computes.
    by_sms
        The same, of every SM for itself: an instant counts with the share of the GPU's SMs on which
        nothing computes.
    unfilled_us
        For each GPU, that share of the instants in which it computes and nothing of its own is
        under way. Too few tiles are ready: the last ones of a kernel, or those of rows that came.
    copying_us
        For each GPU, the part of `by_time.wires_us` in which its SMs or memory copy rows, whatever
        is on its ports; None in results of older versions.
    gaps_us, launches_us
        For each GPU, time up to its own end that is not exposed and in which nothing computes: a gap
        between its kernels, or else a kernel that waits for its launch alone; likewise. What is left
        of that time, it computes.
    """

    by_time: WaitTimes
    by_sms: WaitTimes
    unfilled_us: list[float]
    copying_us: list[float] | None = None
    gaps_us: list[float] | None = None
    launches_us: list[float] | None = None


class SmTime(Strict):
    """Time in service of all SMs of each GPU, added up over its SMs.

    Attributes
    ----------
    computing_us, copying_us
        Service for the GPU's own data, and for rows that travel, without waits for what tiles read.
    waiting_for_l2_us, waiting_for_hbm_us
        Service beyond a task's own time until what it reads has come, by what served it last: the
        L2 cache, or device memory.
    """

    computing_us: list[float]
    copying_us: list[float]
    waiting_for_l2_us: list[float]
    waiting_for_hbm_us: list[float]


class SlowToken(Strict):
    """One of the tokens that took longest.

    Attributes
    ----------
    token
        Its place in the batch, tokens ordered by owner.
    trace_row
        Its row in the trace, where that is known.
    experts
        Where its rows went: experts, or what stands for them in the work of a layer, which are
        their slots where some have replicas, and their slices where GPUs share each.
    """

    token: int
    trace_row: int | None
    rank: int
    experts: list[int]
    sent_us: float
    combined_us: float
    latency_us: float


class BusiestResource(Strict):
    """The resource that is busy for the largest share of the layer."""

    name: str
    group: str
    utilisation: float = Field(ge=0, le=1)


class Bounds(Strict):
    """Times that no schedule of this work can beat.

    Attributes
    ----------
    port_us
        Busiest port, all phases together.
    phases_us
        Busiest port of the dispatch plus that of the combine, for schemes that keep the two apart
        with a barrier over all GPUs; otherwise null.
    sm_us, memory_us
        All work on the SMs of a GPU over its SMs, or the busiest ones of those that a kernel has
        for one purpose; busiest HBM or L2 cache.
    chain_us
        Longest chain of dependent tasks, if nothing ever waited for a resource.
    largest_us
        The largest of them.
    """

    port_us: float
    phases_us: float | None
    sm_us: float
    memory_us: float
    chain_us: float
    largest_us: float


class OverheadTasks(Strict):
    """Tasks of a critical path of one kind, place and length, which are overhead or have a latency.

    Attributes
    ----------
    kind, group
        Kind of the tasks, and class of the resource that they hold; ``(delay)`` for none.
    each_us, count
        Time of each, and how many there are.
    values
        Values of the system that this time is made of; none where it is software's own. None in
        results of older versions.
    places
        Code that asked for the tasks, by file and function, and how many it asked for; likewise.
    """

    kind: str
    group: str
    each_us: float
    count: int
    values: list[str] | None = None
    places: dict[str, int] | None = None


class CriticalPathTimes(Strict):
    """One chain of tasks and waits that adds up to the layer's time.

    Attributes
    ----------
    by_cause_us
        compute; serialisation (on a port); copying (SMs and HBM that move rows); overhead
        (launches, barriers, flags, host waits); queueing (all servers busy); latency (on the way);
        credits (waiting for room in a buffer).
    by_kind_us, by_resource_us
        Service, queueing, latency and credits of the chain's tasks, by kind and by class of
        resource.
    queueing_behind_us
        The queueing time by the kind of the tasks that were served meanwhile.
    behind_by_kind_us
        The same by the kind of the task that waited; None in results of older versions.
    overhead
        Service that is overhead, by kind, place and length; it adds up to that of `by_cause_us`.
        None in results of older versions.
    latencies
        Latency of tasks that are no messages, likewise.
    by_place_us
        As `by_kind_us`, by the code that asked for the tasks, by file and function; likewise.
    beside
        Values of the system that enter times of other tasks, but of none on the path.
    """

    num_tasks: int
    by_cause_us: dict[str, float]
    by_kind_us: dict[str, dict[str, float]]
    by_resource_us: dict[str, dict[str, float]]
    queueing_behind_us: dict[str, float]
    behind_by_kind_us: dict[str, dict[str, float]] | None = None
    overhead: list[OverheadTasks] | None = None
    latencies: list[OverheadTasks] | None = None
    by_place_us: dict[str, dict[str, dict[str, float]]] | None = None
    beside: list[str] | None = None


class TableUse(Strict):
    """Use of the tables of a group (one or several per GPU).

    Attributes
    ----------
    entries
        Entries of one table.
    lookups, hits, new, missed
        Of all tables together; *new* keys were never there, *missed* ones had been evicted.
    evictions
        Entries that left for want of room.
    hit_rate
        Hits over lookups; 1 without lookups.
    high_water
        Most entries in use at once in one table.
    """

    entries: int
    lookups: int
    hits: int
    new: int
    missed: int
    evictions: int
    hit_rate: float = Field(ge=0, le=1)
    high_water: int


class BufferUse(Strict):
    """Capacity of the finite buffers of a group, and the most that was in use at once in one."""

    capacity: int
    high_water: int


class CacheUse(Strict):
    """Bytes of blocks that SMs read through the L2 caches, of all GPUs together.

    Attributes
    ----------
    bytes
        What tiles asked for, a block for each tile that works on it.
    first_bytes
        Of that, blocks that nobody had asked for before.
    again_bytes
        Blocks that had to leave and were read from memory again.
    """

    bytes: int
    first_bytes: int
    again_bytes: int

    @property
    def passes(self) -> float:
        """Times that a block was read from memory, in the mean over bytes; 1 without any."""
        fetched = self.first_bytes + self.again_bytes
        return fetched / self.first_bytes if self.first_bytes else 1.0


class TileUse(Strict):
    """Degree to which rows fill the tiles of the experts' first GEMM.

    Attributes
    ----------
    num_tiles, num_rows
        Row tiles, and rows in them.
    fill
        Rows over the rows that so many full tiles have.
    """

    num_tiles: int
    num_rows: int
    fill: float = Field(ge=0, le=1)


class ExpertUse(Strict):
    """Degree to which tiles share the weights of an expert.

    Attributes
    ----------
    weight_reads
        How often the weights that are used were read from device memory, over reading each once.
    num_experts
        Experts with rows, counted in each of their GEMMs.
    mean_row_tiles, most_row_tiles
        Row tiles of such an expert, in the mean and at most.
    """

    weight_reads: float = Field(ge=1)
    num_experts: int
    mean_row_tiles: float
    most_row_tiles: int


class Mechanisms(Strict):
    """Report of a scheme's mechanisms.

    Attributes
    ----------
    wire_bytes
        Bytes on the ports by what they are for: payload, headers (with target lists, row metadata
        and padding), requests, acks, signals (counts, flags, notifications), weights (of experts
        that are copied; only where there are any), evictions (partial sums sent early,
        rows sent again).
    tables, buffers
        Finite memories by name.
    cache
        Blocks read through the L2 caches, by what they are; empty in results of older versions.
    experts
        Reads of weights and row tiles; null where no expert has rows, and in results of older
        versions.
    polling_us
        For each GPU, SM time in which blocks held an SM and waited for data; null for schemes whose
        blocks do not.
    counters, ratios
        What else the scheme counts, for each GPU, and sums of them over one another.
    """

    wire_bytes: dict[str, PortBytes]
    tables: dict[str, TableUse]
    buffers: dict[str, BufferUse]
    cache: dict[str, CacheUse] = Field(default_factory=dict)
    experts: ExpertUse | None = None
    tiles: TileUse | None
    polling_us: list[float] | None
    counters: dict[str, list[int]]
    ratios: dict[str, float]
