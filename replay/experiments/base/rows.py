"""Results as rows of a table: one per replay, with typed columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracegen.shared.display.frames import flat

if TYPE_CHECKING:
    from pydantic import BaseModel

COLUMNS: dict[str, type] = {
    "run_id": str,
    "version": str,
    "scheme": str,
    "options": str,  # JSON
    "lacking": str,  # hardware that the scheme needs and the system has not
    "system": str,
    "overrides": str,  # JSON
    "model": str,
    "content_id": str,
    "num_experts": int,
    "topk": int,
    "hidden": int,
    "moe_intermediate": int,
    "ranks": int,
    "phase": str,
    "step": int,
    "steps": int,
    "tokens_per_rank": int,  # none where the trace carries its own ranks
    "pass": str,
    "barrier": bool,
    "interleave": str,
    "placement": str,
    "expert_tp": int,  # GPUs that share an expert
    "gemm_type": str,
    "weight_type": str,
    "dispatch_type": str,
    "combine_type": str,
    "launch": str,
    "num_layers": int,
    "num_tasks": int,
    "makespan_us": float,
    "mean_layer_us": float,
    "exposed_communication_us": float,
    "bound_us": float,
    "uplink_payload_bytes": int,  # of all GPUs
    "downlink_payload_bytes": int,
    "estimate_us": float,  # of all layers, where only a sample of them was replayed
    "estimate_low_us": float,
    "estimate_high_us": float,
}
"""Columns of a row, and what stands in them; MODELS.md, MEASURES.md and SWEEPS.md explain them."""


OF_ANY: dict[str, type] = {
    "experiment": str,
    "run_id": str,
    "version": str,
    "scheme": str,
    "options": str,  # JSON
    "lacking": str,
    "system": str,
    "overrides": str,  # JSON
    "headline_us": float,
}
"""Columns that results of every experiment have, as far as it has such a thing."""


_PHASES = ("", "prefill.", "decode.")
NOT_IN_ROWS = ("format", "version", "model", *(f"{phase}system.values" for phase in _PHASES))
"""Paths that would be hundreds of columns, the same in every row."""


def result_row(scheme: str, result: BaseModel) -> dict[str, Any]:
    """Make the row of a result by the paths of its JSON; hardware and sizes of the model are not.

    Parameters
    ----------
    scheme
        Its name in a comparison.
    result
        Any.
    """
    return {"scheme": scheme} | flat(result.model_dump(mode="json", by_alias=True), NOT_IN_ROWS)


def row_of_any(experiment: str, headline: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Make the row of a result of any experiment, with the keys of `OF_ANY`.

    Parameters
    ----------
    experiment, headline
        Name of what was replayed, and the path of its time.
    result
        The JSON of its result, as objects.
    """
    spec = result["spec"]
    described = [one for one in _within(result, "scheme") if isinstance(one, Mapping)]
    systems = [one["name"] for one in _within(result, "system") if isinstance(one, Mapping)]
    time: Any = result
    for part in headline.split(".") if headline else ():
        time = time[part]
    row = {
        "experiment": experiment,
        "run_id": result["run_id"],
        "version": result["version"],
        "scheme": "+".join(dict.fromkeys(one["name"] for one in described)) or None,
        "options": json.dumps(described[0]["options"], sort_keys=True) if described else None,
        "lacking": ", ".join(dict.fromkeys(word for one in described for word in one["lacking"])),
        "system": "+".join(dict.fromkeys(systems)) or None,
        "overrides": json.dumps(spec.get("overrides", {}), sort_keys=True),
        "headline_us": time if headline else None,
    }
    return {name: row[name] for name in OF_ANY}


def _within(result: Mapping[str, Any], name: str) -> list[Any]:
    """Values of a name in a result, or in the phases that it has in its place."""
    phases = result.get("phases", [result.get("prefill"), result.get("decode")])
    places = [result] if name in result else [one for one in phases if isinstance(one, Mapping)]
    return [one[name] for one in places if name in one]


def row_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Make the row of a result, with the keys of `COLUMNS`.

    Parameters
    ----------
    result
        The JSON of a `Result`, as objects.
    """
    spec, scheme, trace = result["spec"], result["scheme"], result["trace"]
    batch, types, totals = result["batch"], result["types"], result["totals"]
    parts = [result["chain"]] if result["chain"] else result["layers"]
    row = {
        "run_id": result["run_id"],
        "version": result["version"],
        "scheme": scheme["name"],
        "options": json.dumps(scheme["options"], sort_keys=True),
        "lacking": ", ".join(scheme["lacking"]),
        "system": result["system"]["name"],
        "overrides": json.dumps(spec["overrides"], sort_keys=True),
        "content_id": trace["content_id"],
        "ranks": batch["num_ranks"],
        "phase": batch["phase"],
        "step": batch["step"],
        "steps": spec["steps"],
        "tokens_per_rank": batch["tokens_per_rank"],
        "pass": spec["pass"],
        "barrier": spec["barrier"],
        "interleave": spec["interleave"],
        "placement": result["placement"],
        "expert_tp": spec.get("expert_tp", 1),
        "gemm_type": types["gemm"],
        "weight_type": types.get("weights", types["gemm"]),
        "dispatch_type": types["dispatch_type"],
        "combine_type": types["combine_type"],
        "launch": result["launch"],
        "num_tasks": sum(part["measures"]["num_tasks"] for part in parts),
        "uplink_payload_bytes": sum(totals["uplink_payload_bytes"]),
        "downlink_payload_bytes": sum(totals["downlink_payload_bytes"]),
    }
    sizes = ("model", "num_experts", "topk", "hidden", "moe_intermediate")
    row |= {name: trace[name] for name in sizes}
    times = ("makespan_us", "mean_layer_us", "exposed_communication_us", "bound_us")
    row |= {name: totals[name] for name in ("num_layers", *times)}
    whole = result.get("estimate") or {}
    row |= {
        "estimate_us": whole.get("makespan_us"),
        "estimate_low_us": whole.get("low_us"),
        "estimate_high_us": whole.get("high_us"),
    }
    return {name: row[name] for name in COLUMNS}
