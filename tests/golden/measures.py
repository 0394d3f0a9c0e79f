"""A result as a flat mapping of names to values.

This is the only place of the golden results that knows how a `replay.Result` is laid out. When the
layout changes, this file follows; the names it gives and the frozen values stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Value = str | int | float | bool | None | list[Any] | dict[str, Any]
Named = Iterator[tuple[str, Value]]

LONGEST = 16
"""Entries of a list that is kept as it is; of a longer one the hash is kept."""

CAUSES = ("service", "queueing", "latency", "credits")
"""Order of the four times of a kind or a class of resources on a critical path."""


def flatten(trace: Any, result: Any, timelines: Sequence[Any]) -> dict[str, Value]:
    """Give every measure a name of its own.

    Parameters
    ----------
    trace
        What was replayed: its choices of experts are hashed, so that a trace that is drawn
        differently is not mistaken for a scheme that behaves differently.
    result
        A `replay.Result`.
    timelines
        The schedules of the graphs that the result was made from, in the order of `replay.run`.

    Returns
    -------
    Values by name. Small things that belong together are one record, so that they take one line. A
    list with more than `LONGEST` entries is the SHA-256 of its `repr`, inside a record too.
    """
    named = [
        ("trace/expert_ids_sha256", _hash(trace.expert_ids, "<u2")),
        *_settings(result),
        *_under("totals", _totals(result.totals)),
    ]
    parts = result.layers if result.chain is None else [result.chain]
    for index, (part, timeline) in enumerate(zip(parts, timelines, strict=True)):
        prefix = "chain" if result.chain is not None else f"layer {index}"
        named += _under(prefix, _measures(part.measures))
        named += _under(prefix, _routing(part.routing))
        named += _under(prefix, _schedule(timeline))
        named += _under(prefix, _chain(part) if result.chain is not None else _layer(part))
    flat = {name: _short(value) for name, value in named}
    assert len(flat) == len(named), "two measures have the same name"
    return flat


def flatten_sliced(result: Any, timeline: Any) -> dict[str, Value]:
    """The same of a `TensorResult` and the schedule that it was made from."""
    named: list[tuple[str, Value]] = [
        ("settings/tp", result.tp),
        ("settings/tokens", result.tokens),
        ("settings/sequence", result.sequence),
        ("settings/traffic", dict(result.scheme.traffic)),
        ("time_us", result.time_us),
        ("products_us", result.products_us),
        ("communication_sms", result.communication_sms),
    ]
    for name, direction in (("up", result.up), ("down", result.down)):
        named += [(f"{name}/{key}", value) for key, value in direction.model_dump().items()]
    for name, skew in result.skew.between_gpus.items():
        named.append((f"skew/{name}", skew.model_dump()))
    named += _under("layer", _measures(result.measures))
    named += _under("layer", _schedule(timeline))
    return {name: _short(value) for name, value in named}


def _under(prefix: str, named: Iterable[tuple[str, Value]]) -> Named:
    for name, value in named:
        yield f"{prefix}/{name}", value


def _short(value: Value) -> Value:
    if isinstance(value, dict):
        return {name: _short(entry) for name, entry in sorted(value.items())}
    if isinstance(value, list) and len(value) > LONGEST:
        return f"{len(value)} entries, SHA-256 {hashlib.sha256(repr(value).encode()).hexdigest()}"
    return value


def _hash(values: Any, dtype: str) -> str:
    """SHA-256 of an array's values in C order, as little-endian numbers of one width."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype).tobytes()).hexdigest()


def _settings(result: Any) -> Named:
    yield "settings/precision", result.precision
    yield "settings/direction", result.spec.direction
    yield "settings/scheme/lacking", result.scheme.lacking
    for name, value in result.batch.model_dump(exclude_none=True).items():
        yield f"settings/batch/{name}", value
    if result.scheme.tuned:
        trials = [(sorted(trial.options.items()), trial.makespan_us) for trial in result.scheme.tuned]
        yield "settings/scheme/tuning_trials", trials
        yield "settings/scheme/tuned_options", dict(result.scheme.options)


def _totals(totals: Any) -> Named:
    yield "num_layers", totals.num_layers
    yield "makespan_us", totals.makespan_us
    yield "mean_layer_us", totals.mean_layer_us
    yield "exposed_communication_us", totals.exposed_communication_us
    yield "bound_us", totals.bound_us
    yield (
        "payload_bytes",
        {"uplink": totals.uplink_payload_bytes, "downlink": totals.downlink_payload_bytes},
    )


def _schedule(timeline: Any) -> Named:
    yield "tasks/start_ps_sha256", _hash(timeline.start_ps, "<i8")
    yield "tasks/end_ps_sha256", _hash(timeline.end_ps, "<i8")


def _measures(part: Any) -> Named:
    """What is measured on one schedule, of a layer or of a chain of them."""
    yield "tasks/count", part.num_tasks
    yield "tasks/edges", part.num_edges
    yield "makespan_us", part.makespan_us
    yield "end_us_per_gpu", part.rank_end_us
    yield "exposed_communication_us", part.exposed_communication_us
    yield "exposed_communication_us_per_gpu", part.exposed_communication_us_per_gpu
    if part.exposure is not None:
        for how in ("by_time", "by_sms"):
            yield f"exposure/{how}", getattr(part.exposure, how).model_dump()
        yield "exposure/unfilled_us", part.exposure.unfilled_us
    if part.sm_time_us is not None:
        yield "sm_time_us", part.sm_time_us.model_dump()
    for name, phase in part.phases.items():
        times = {"start_us": phase.start_us, "end_us": phase.end_us, "busy_us": phase.busy_us}
        yield f"phase/{name}", times
    yield from _bytes(part)
    for name, port in part.busiest_port.items():
        yield (
            f"busiest_port/{name}",
            {
                "direction": port.direction,
                "gpu": port.gpu,
                "payload_bytes": port.payload_bytes,
                "wire_bytes": port.wire_bytes,
                "busy_us": port.busy_us,
            },
        )
    for group, share in part.utilisation.items():
        yield f"utilisation/{group}", {"mean": share.mean, "max": share.max}
    yield "utilisation_over_time/window_us", part.utilisation_over_time.window_us
    for group, shares in part.utilisation_over_time.groups.items():
        yield f"utilisation_over_time/{group}", shares
    busiest = part.busiest_resource
    yield (
        "busiest_resource",
        {"name": busiest.name, "group": busiest.group, "utilisation": busiest.utilisation},
    )
    yield from _under("bound", _bounds(part.bounds_us))
    yield from _under("critical_path", _critical_path(part.critical_path))
    yield from _under("mechanism", _mechanisms(part.mechanisms))


def _routing(routing: Any) -> Named:
    """What the routing asks for."""
    for name, value in routing.model_dump().items():
        yield f"routing/{name}", value


def _bytes(part: Any) -> Named:
    for what, phases in (("payload", part.payload_bytes), ("wire", part.wire_bytes)):
        for phase, ports in phases.items():
            yield f"{what}_bytes/{phase}", _ports(ports)


def _ports(ports: Any) -> Value:
    """Bytes of each GPU's port, by direction."""
    return {"uplink": ports.uplink, "downlink": ports.downlink}


def _bounds(bounds: Any) -> Named:
    yield "port_us", bounds.port_us
    yield "phases_us", bounds.phases_us
    yield "sm_us", bounds.sm_us
    yield "memory_us", bounds.memory_us
    yield "chain_us", bounds.chain_us
    yield "largest_us", bounds.largest_us


def _critical_path(path: Any) -> Named:
    yield "num_tasks", path.num_tasks
    yield "causes_us", dict(path.by_cause_us)
    for kind, times in path.by_kind_us.items():
        yield f"kind/{kind}_us", _by_cause(times)
    for group, times in path.by_resource_us.items():
        yield f"resource/{group}_us", _by_cause(times)
    for kind, time in path.queueing_behind_us.items():
        yield f"queueing_behind/{kind}_us", time


def _by_cause(times: Mapping[str, float]) -> list[float]:
    """Times in `CAUSES`' order: a path has many kinds, and each should take one short line."""
    assert set(times) == set(CAUSES)
    return [times[cause] for cause in CAUSES]


def _mechanisms(mechanisms: Any) -> Named:
    for role, ports in mechanisms.wire_bytes.items():
        yield f"wire_bytes/{role}", _ports(ports)
    for name, table in mechanisms.tables.items():
        yield (
            f"table/{name}",
            {
                "entries": table.entries,
                "lookups": table.lookups,
                "hits": table.hits,
                "new": table.new,
                "missed": table.missed,
                "evictions": table.evictions,
                "hit_rate": table.hit_rate,
                "high_water": table.high_water,
            },
        )
    for name, buffer in mechanisms.buffers.items():
        yield f"buffer/{name}/capacity", buffer.capacity
        yield f"buffer/{name}/high_water", buffer.high_water
    tiles = mechanisms.tiles
    if tiles is not None:
        yield "tiles/count", tiles.num_tiles
        yield "tiles/rows", tiles.num_rows
        yield "tiles/fill", tiles.fill
    yield "polling_us_per_gpu", mechanisms.polling_us
    for name, counts in mechanisms.counters.items():
        yield f"counter/{name}", counts
    for name, ratio in mechanisms.ratios.items():
        yield f"ratio/{name}", ratio


def _layer(layer: Any) -> Named:
    """What only a layer by itself has."""
    yield "place/step", layer.step
    yield "place/layer_index", layer.layer_index
    yield "place/decoder_layer", layer.decoder_layer
    yield "place/is_backward", layer.is_backward
    latency = layer.token_latency_us
    yield (
        "token_latency",
        {
            "num_tokens": latency.num_tokens,
            "mean_us": latency.mean_us,
            "p50_us": latency.p50_us,
            "p90_us": latency.p90_us,
            "p99_us": latency.p99_us,
            "max_us": latency.max_us,
        },
    )
    if layer.token_latency_from_start_us is not None:
        yield "token_latency_from_start", layer.token_latency_from_start_us.model_dump()
    for index, slow in enumerate(layer.slowest_tokens):
        yield (
            f"slowest_token/{index}",
            {
                "token": slow.token,
                "trace_row": slow.trace_row,
                "rank": slow.rank,
                "experts": slow.experts,
                "sent_us": slow.sent_us,
                "combined_us": slow.combined_us,
                "latency_us": slow.latency_us,
            },
        )


def _chain(chain: Any) -> Named:
    """What only layers in a chain have."""
    yield "num_steps", chain.num_steps
    yield "num_layers", chain.num_layers
    yield "between_us", chain.between_us
    yield "barrier_us", chain.barrier_us
    yield "left_out", chain.left_out
    for index, link in enumerate(chain.layers):
        yield from _under(f"link {index}", _link(link))


def _link(link: Any) -> Named:
    place = {"step": link.step, "layer": link.layer_index, "is_backward": link.is_backward}
    yield "place", place
    yield "start_us", list(link.start_us)
    yield "end_us", list(link.end_us)
    yield "mean_us", link.mean_us
    yield "phases_us", {phase: list(times) for phase, times in link.phases_us.items()}
    yield from _bytes(link)
