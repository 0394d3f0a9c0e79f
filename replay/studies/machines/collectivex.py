"""CollectiveX's results: its low-latency kernels of DeepEP.

Format: SemiAnalysisAI/InferenceX 843c6254, ``experimental/CollectiveX/bench/ep_harness.py`` lines
1368 to 1460 (a row), 1476 to 1500 (the case), 1517 to 1603 (the document). Its headline times have
the host's launches and casts in them, which no table of kernels has. What comes close to a kernel's
own time is ``chain_floor_us``, the least of all ranks' windows in a chain of calls, which that
source states to be within about 10 % of the profiled kernel. Of normal mode the number of SMs
is not in the document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.studies.machines.log import Log

TOOL = "CollectiveX"


def is_json(document: Any) -> bool:
    """Tell whether CollectiveX wrote a document."""
    return isinstance(document, dict) and document.get("record_type") == "case-attempt"


def read_json(log: Log, document: dict[str, Any]) -> None:
    """Take the rows of a case."""
    case = document["identity"]["case_factors"]["case"]
    why_not = ""
    if document["outcome"]["status"] != "success":
        why_not = "an attempt that did not succeed"
    elif (case["backend"], case["mode"], case["routing"]) != (
        "deepep-v2",
        "low-latency",
        "uniform",
    ):
        why_not = "a backend or mode without a table"
    elif case["nodes"] > 1 and case.get("scale_out_transport"):
        why_not = "low latency between nodes, of other GPUs a node than the table's"
    for number, row in enumerate(document["measurement"]["rows"], start=1):
        for phase in ("dispatch", "combine"):
            floor = (row.get("chain_floor_us") or {}).get(phase) or {}
            times = floor.get("percentiles_us")
            if why_not or not times:
                log.leave(why_not or "no floors of a chain (an older document)")
            elif phase == "dispatch" and case["precision"] != "fp8":
                log.leave("dispatch in BF16: the tables have FP8")
            else:
                log.take(
                    "deepep_low_latency",
                    number,
                    float(times["p50"]),
                    phase=phase,
                    ep_size=case["ep"],
                    hidden=case["hidden"],
                    topk=case["topk"],
                    num_experts=case["experts"],
                    tokens_per_rank=row["tokens_per_rank"],
                )
