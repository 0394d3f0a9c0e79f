"""Dumps in binary files, which the table of importers has no samples of; made as their tools do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.tracegen.importers.dumps import (
    EXPERTS,
    TOPK,
    megatron_files,
    routing,
    safetensors,
    sglang_record,
)

IDS = routing(12)
ROWS = {
    "expert_ids": IDS,
    "weights": np.full(IDS.shape, 0.25, np.float32),
    "step": np.arange(12) // 4,
    "request": np.arange(12) % 4,
}


def arrays_npz(folder: Path) -> None:
    np.savez(folder / "a.npz", **ROWS)


def arrays_safetensors(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(safetensors(ROWS))


def arrays_parquet(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = {name: value.tolist() for name, value in ROWS.items()}
    parquet.write_table(pyarrow.table(table), folder / "a.parquet")


def sglang_records(folder: Path) -> None:
    import torch

    records = [
        sglang_record(IDS[:8], [*range(8)], 7, 1, [8]),
        sglang_record(IDS[8:9], [8], 8, 2, None),
    ]
    mapping = torch.arange(EXPERTS).expand(2, EXPERTS).contiguous()
    torch.save({"records": records, "last_physical_to_logical_map": mapping}, folder / "r_1_0.pt")


def sglang_counts(folder: Path) -> None:
    import torch

    counts = np.zeros((2, 2, EXPERTS), np.int32)
    counts[:, :, :TOPK] = 20
    torch.save({"rank": 0, "logical_count": torch.from_numpy(counts)}, folder / "stat.pt")


def rollout_samples(folder: Path) -> None:
    import torch

    sample = {
        "tokens": [*range(13)],
        "response_length": 3,
        "rollout_routed_experts": IDS.astype(np.int32),
    }
    columns = {
        "tokens": [sample["tokens"]],
        "response_lengths": [3],
        "rollout_routed_experts": [torch.from_numpy(IDS)],
    }
    torch.save(columns, folder / "rollout.pt")


def vllm_arrays(folder: Path) -> None:
    np.save(folder / "r.npy", IDS.astype(np.int16))


def megatron_jsonl(folder: Path) -> None:
    megatron_files(
        folder,
        {(step, rank): routing(6, 1, seed=9 * step + rank) for step in (0, 1) for rank in (0, 1)},
    )


def tensorrt_counts(folder: Path) -> None:
    meta = {"num_experts": EXPERTS, "num_experts_per_token": TOPK}
    (folder / "meta_info.json").write_text(json.dumps(meta))
    part = {f"10_{layer}": np.bincount(routing(30, 1, seed=layer).ravel(), minlength=EXPERTS) for layer in (3, 4)}
    (folder / "rank0.safetensors").write_bytes(safetensors(part))


def gpt_oss_tokens(folder: Path) -> None:
    router = [
        {
            f"token_{token}": {
                f"layer_{layer}": {
                    "selected_experts": IDS[token, layer].tolist(),
                    "selected_probs": [0.5, 0.3, 0.2],
                }
                for layer in (0, 1)
            }
        }
        for token in range(12)
    ]
    text = json.dumps({"dataset": "exams", "category": "law", "router_data": router})
    (folder / "a_examples.json").write_text(text)
    (folder / "b_examples.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def flame_layers(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    for layer in (0, 1):
        scores = [np.array([0.5, 0.3, 0.2], np.float16)] * 12
        parquet.write_table(
            pyarrow.table(
                {
                    "scores": pyarrow.array(scores, pyarrow.list_(pyarrow.float16())),
                    "indices": pyarrow.array(IDS[:, layer].tolist(), pyarrow.list_(pyarrow.int16(), TOPK)),
                }
            ),
            folder / f"layer_{layer + 2}.parquet",
        )


def loads_json(folder: Path) -> None:
    counts = {layer: {expert: 8 * layer + expert for expert in range(EXPERTS)} for layer in (0, 1)}
    (folder / "loads.json").write_text(json.dumps(counts))


def loads_csv(folder: Path) -> None:
    rows = [f"{layer},{expert},{4 * expert}" for layer in (0, 1) for expert in range(EXPERTS)]
    (folder / "loads.csv").write_text("\n".join(["layer_id,expert_id,count", *rows]))


def loads_npy(folder: Path) -> None:
    np.save(folder / "loads.npy", np.arange(2 * EXPERTS).reshape(2, EXPERTS) * TOPK)


WRITERS: dict[str, list[Callable[[Path], None]]] = {
    "arrays": [arrays_npz, arrays_safetensors, arrays_parquet],
    "sglang": [sglang_records, sglang_counts],
    "rollout": [rollout_samples],
    "vllm": [vllm_arrays],
    "megatron": [megatron_jsonl],
    "counts": [loads_json, loads_csv, loads_npy],
    "tensorrt-llm": [tensorrt_counts],
    "gpt-oss": [gpt_oss_tokens],
    "flame": [flame_layers],
}
"""By format; each fills a folder with files that are given one by one."""
