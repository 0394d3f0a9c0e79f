"""The measures of a schedule: of one layer by itself, or of a chain of layers.

Times are microseconds (exact multiples of a picosecond), bytes are whole numbers, and lists have
one entry per GPU.
"""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from replay.measure.parts import (
    Bounds,
    BusiestPort,
    BusiestResource,
    CriticalPathTimes,
    Exposure,
    Mechanisms,
    Memory,
    NetworkLoad,
    PhaseTimes,
    PortBytes,
    Routing,
    SlowToken,
    SmTime,
    TokenLatency,
    Utilisation,
    UtilisationOverTime,
)
from tracegen.shared.strict import Strict


class Measures(Strict):
    """Measures of one schedule, of one layer or of many.

    Attributes
    ----------
    exposed_communication_us, exposed_communication_us_per_gpu
        Time from the layer's start to the GPU's own end in which neither a compute task (GEMM tile,
        permute, activation) nor a gap between kernels is in service or draining, and no kernel
        waits for its launch alone: transfers, synchronisation and waiting that nothing hides. Mean
        over the GPUs, and each.
    exposure
        The same by what is waited for, by time and by SMs; None where an older version did not say.
    sm_time_us
        What SMs spend their time on; None where an older version did not say.
    busiest_port
        For dispatch, combine and the whole layer ("both").
    critical_path
        One chain of tasks and waits that adds up to the layer's time, by what the time was spent
        on.
    mechanisms
        What explains the result: finite tables and buffers, tiles, polling, bytes by purpose.
    network
        Ports between NVLink domains, all nodes' where some are sampled too; None where nothing
        leaves a domain.
    """

    makespan_us: float
    rank_end_us: list[float]
    phases: dict[str, PhaseTimes]
    payload_bytes: dict[str, PortBytes]
    wire_bytes: dict[str, PortBytes]
    busiest_port: dict[str, BusiestPort]
    utilisation: dict[str, Utilisation]
    utilisation_over_time: UtilisationOverTime
    busiest_resource: BusiestResource
    exposed_communication_us: float
    exposed_communication_us_per_gpu: list[float]
    exposure: Exposure | None = None
    sm_time_us: SmTime | None = None
    bounds_us: Bounds
    critical_path: CriticalPathTimes
    mechanisms: Mechanisms
    network: NetworkLoad | None = None
    num_tasks: int
    num_edges: int


class LayerResult(Strict):
    """One layer of one step, beginning on all GPUs at once.

    Attributes
    ----------
    step, layer_index, decoder_layer
        Which layer it is: step, position among the MoE layers, number in the model.
    is_backward
        Whether it is the backward pass.
    routing
        What the routing asks for.
    measures
        What is measured on its schedule.
    token_latency_us, slowest_tokens
        How long the tokens take from the start of their dispatch, and the tokens that take longest.
    token_latency_from_start_us
        How long they take from the start of the layer; None where an older version did not say.
    memory
        Device memory that it takes; None where an older version did not say.
    sampled_nodes
        Nodes that were replayed in full, whose GPUs alone are in all lists of `measures`; None
        where all were.
    """

    step: int
    layer_index: int
    decoder_layer: int
    is_backward: bool
    routing: Routing
    measures: Measures
    token_latency_us: TokenLatency
    token_latency_from_start_us: TokenLatency | None = None
    slowest_tokens: list[SlowToken]
    memory: Memory | None = None
    sampled_nodes: list[int] | None = None


class ChainedLayer(Strict):
    """One layer of a chain, as the GPUs met it.

    Attributes
    ----------
    start_us, end_us
        When the first and the last GPU began, and when the first and the last had its tokens.
    mean_us
        Mean over the GPUs of the time from its beginning to its end, waiting for others included.
    phases_us
        First start and last end of each phase, over all GPUs.
    payload_bytes, wire_bytes
        As in `Measures`, of this layer alone.
    """

    step: int
    layer_index: int
    is_backward: bool
    start_us: tuple[float, float]
    end_us: tuple[float, float]
    mean_us: float
    phases_us: dict[str, tuple[float, float]]
    payload_bytes: dict[str, PortBytes]
    wire_bytes: dict[str, PortBytes]


class Pairs(Strict):
    """Layers of a forward pass beside layers of a backward pass: times of a pair.

    Lists have one entry per GPU, times are divided by the number of pairs.

    Attributes
    ----------
    pair_us
        From the start to the GPU's end of both passes.
    sequence_us
        The same layers one pass after the other, with weight gradients where the scheme has them
        and all SMs for every kernel.
    forward_us
        The forward pass of that, until the GPU's end of it.
    busy_us
        The stream that computes, by "attention", "dense" (shared experts) and "experts", and that
        for rows ("rows"). A stream is busy from when nothing before holds its kernels back.
    both_us
        Time in which both streams are busy.
    """

    pair_us: list[float]
    sequence_us: list[float]
    forward_us: list[float]
    busy_us: dict[str, list[float]]
    both_us: list[float]

    @property
    def exposed_us(self) -> list[float]:
        """Time in which nothing computes, of each GPU."""
        computing = zip(*(times for of, times in self.busy_us.items() if of != "rows"), strict=True)
        both = zip(self.pair_us, computing, strict=True)
        return [max(pair - sum(busy), 0.0) for pair, busy in both]  # sums are rounded

    def share(self, times: list[float]) -> float:
        """Share of such times in those of a pair, of all GPUs together."""
        return sum(times) / sum(self.pair_us)


class ChainResult(Strict):
    """Layers of one or several steps, each GPU going on when its own tokens are combined.

    Attributes
    ----------
    num_steps, num_layers
        Steps, and MoE layers of one pass of a step.
    layers
        Each layer of each step and pass, in order.
    between_us
        Mean over the GPUs of the time in attention, norms, gate and shared experts.
    left_out
        Parts of the model that no time is charged for.
    barrier_us
        Time of the same work with a barrier over all GPUs after each layer, if it was asked for:
        the slowest GPU's time between layers and the isolated layer's, summed.
    routing
        Mean over the layers.
    measures
        What is measured on the schedule of the whole chain.
    memory
        Device memory of the layer that takes most; None where an older version did not say.
    pairs
        Where a forward runs beside a backward pass, whose layers `layers` has in turn; left out of
        the file otherwise.
    """

    num_steps: int
    num_layers: int
    layers: list[ChainedLayer]
    between_us: float
    left_out: list[str]
    barrier_us: float | None
    routing: Routing
    measures: Measures
    memory: Memory | None = None
    pairs: Pairs | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if self.pairs is None:
            values.pop("pairs", None)
        return values
