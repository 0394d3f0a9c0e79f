"""Make the traces of the library and their index; content ids must not change.

    python scripts/make_traces.py                          the synthetic ones
    python scripts/make_traces.py --ids F --weights F      also those of GPT-OSS-20B
    python scripts/make_traces.py --law F                  also that of DeepSeek-V2-Lite

F are the recordings of traces/README.md, in the layout described there.
A content id that differs from the one in the index is an error unless --accept is given.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import tracegen
from tracegen.library import catalogue, describe, open_trace
from tracegen.trace import provenance
from tracegen.trace.checks import boundaries

FOLDER = Path(__file__).resolve().parent.parent / "traces"
SOURCE_REPOSITORY = "https://github.com/AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting"
SOURCE_COMMIT = "72b368f60045221f21eeb65debb27d58de92e565"
ESFT_REPOSITORY = "https://github.com/deepseek-ai/ESFT"
ESFT_COMMIT = "579a7711e4b332b4c57b47e378a0cf240d85caa6"
PREFILL, DECODE = 0, 1
ESFT_CITATION = f"DeepSeek-AI, ESFT (arXiv 2407.01906), {ESFT_REPOSITORY}"
CITATION = f"Aman Priyanshu, GPT-OSS-MoE-ExpertFingerprinting, {SOURCE_REPOSITORY}"

PREFILLED = "deepseek-v2-lite-law"
"""The recorded trace of prefill."""

SYNTHETIC: dict[str, dict[str, Any]] = {
    "toy-uniform": {"kind": "uniform", "seed": 1},
    "toy-zipf": {"kind": "zipf", "skew": 0.6, "seed": 2},
}
"""Name to arguments of `generate`, on top of COMMON."""

COMMON: dict[str, Any] = {
    "model": "qwen2-moe-2.7b-e64",
    "ranks": 8,
    "tokens_per_rank": 256,
    "layers": 2,
    "steps": 2,
}
"""64 experts, top-4, 8 GPUs, two layers, two steps of 2,048 tokens: small enough to look at."""


def make_synthetic(name: str) -> tracegen.RoutingTrace:
    """Make one of the two small traces, the same on every machine."""
    return tracegen.generate.generate(**COMMON, **SYNTHETIC[name])


def convert(path: Path) -> tracegen.RoutingTrace:
    """Convert a recording of GPT-OSS-20B decoding to this project's format.

    The recording lists generations one after the other, prompt rows absent: each row
    is one forward pass of one token, so each row becomes a step of its own.
    """
    shape = tracegen.models.load("gpt-oss-20b")
    with h5py.File(path, "r") as file:
        if file.attrs["source_commit"] != SOURCE_COMMIT:
            sys.exit(f"{path}: made from commit {file.attrs['source_commit']}, not {SOURCE_COMMIT}")
        ids = file["routing/expert_ids"][...]
        request = file["tokens/request"][...].astype(np.uint32)
        position = file["tokens/position"][...].astype(np.uint32)
        first = file["requests/indptr"][...].astype(np.int64)
        labels = [label.decode() for label in file["requests/label"][...]]
        weights = file["routing/gate_weights"][...] if "gate_weights" in file["routing"] else None
        layers = file["model/moe_layer_index"][...]
    num_tokens = ids.shape[1]
    step = np.arange(num_tokens, dtype=np.uint32)
    dataset, label = zip(*(text.split("/", 1) for text in labels), strict=True)
    source = {
        "repository": SOURCE_REPOSITORY,
        "commit": SOURCE_COMMIT,
        "files": "data/**/*_examples.json",
        "license": "Apache-2.0",
        "model": "openai/gpt-oss-20b",
        "sampling": "greedy, up to 512 new tokens, one generation at a time",
    }
    sample = ", 100 of the 703 generations (numpy default_rng(0) choice)" if len(labels) < 703 else ""
    return tracegen.RoutingTrace(
        model=tracegen.TraceModel.from_shape(shape),
        moe_layer_index=layers.astype(np.uint16),
        expert_ids=ids,
        gate_weights=weights,
        tokens=tracegen.TokenTable(
            step=step,
            request=request,
            position=position,
            phase=np.full(num_tokens, DECODE, np.uint8),
        ),
        steps_indptr=boundaries(step),
        requests=tracegen.RequestTable(
            id=np.arange(len(labels), dtype=np.uint32),
            prompt_len=position[first[:-1]],
            output_len=np.diff(first).astype(np.uint32),
            dataset=np.array(dataset),
            label=np.array(label),
        ),
        info=tracegen.TraceInfo(
            kind="imported",
            title=f"gpt-oss-20b decoding{sample or ', 703 generations'}",
            license="Apache-2.0",
            slot_order="weight_desc",
            weight_semantics="" if weights is None else "softmax over the chosen experts, in bf16",
            weight_row_sum="" if weights is None else "1",
            provenance=provenance.record(
                "scripts/make_traces.py",
                source=source,
                dropped=[
                    {
                        "rows": 0,
                        "why": "prompt rows: the recorder lines up layers of one-token passes only",
                    }
                ],
                notes="Only layout and types were changed. Prompt lengths are the position of the "
                "first generated row. Engine batches were not recorded.",
            ),
        ),
    )


def convert_prefill(path: Path) -> tracegen.RoutingTrace:
    """Convert a recording of DeepSeek-V2-Lite's prefill to this project's format.

    The recording lists sequences one after the other, of which each was one forward pass.
    """
    shape = tracegen.models.load("deepseek-v2-lite")
    with h5py.File(path, "r") as file:
        if file.attrs["source_repo"] != ESFT_REPOSITORY:
            sys.exit(f"{path}: made from {file.attrs['source_repo']}, not {ESFT_REPOSITORY}")
        ids = file["routing/expert_ids"][...]
        weights = file["routing/gate_weights"][...]
        request = file["tokens/request"][...].astype(np.uint32)
        position = file["tokens/position"][...].astype(np.uint32)
        phase = file["tokens/phase"][...].astype(np.uint8)
        first = file["requests/indptr"][...].astype(np.int64)
        layers = file["model/moe_layer_index"][...]
    if (phase != PREFILL).any():
        sys.exit(f"{path}: not all rows are prefill")
    lengths = np.diff(first).astype(np.uint32)
    return tracegen.RoutingTrace(
        model=tracegen.TraceModel.from_shape(shape),
        moe_layer_index=layers.astype(np.uint16),
        expert_ids=ids,
        gate_weights=weights,
        tokens=tracegen.TokenTable(step=request, request=request, position=position, phase=phase),
        steps_indptr=boundaries(request),
        requests=tracegen.RequestTable(
            id=np.arange(lengths.size, dtype=np.uint32),
            prompt_len=lengths,
            output_len=np.zeros(lengths.size, np.uint32),
            dataset=np.full(lengths.size, "ESFT"),
            label=np.full(lengths.size, "law"),
        ),
        info=tracegen.TraceInfo(
            kind="imported",
            title="DeepSeek-V2-Lite prefill, 33 sequences of legal tasks",
            license="MIT",
            slot_order="native",
            weight_semantics="as printed in the source: softmax over all experts, not normalised",
            provenance=provenance.record(
                "scripts/make_traces.py",
                source={
                    "repository": ESFT_REPOSITORY,
                    "commit": ESFT_COMMIT,
                    "files": "results/expert_scores/law",
                    "license": "MIT",
                    "model": "deepseek-ai/DeepSeek-V2-Lite",
                },
                notes="One of four tasks. Only layout and types were changed. Sequences were run "
                "one at a time: engine batches were not recorded.",
            ),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=Path, help="recording of all generations, ids only")
    parser.add_argument("--weights", type=Path, help="recording of 100 generations with weights")
    parser.add_argument("--law", type=Path, help="recording of DeepSeek-V2-Lite's prefill")
    parser.add_argument("--accept", action="store_true", help="accept changed content ids")
    options = parser.parse_args()
    index = FOLDER / "index.toml"
    known = tracegen.library.entries() if index.is_file() else {}
    made: list[tuple[str, tracegen.RoutingTrace]] = []
    for name, path in (
        ("gpt-oss-20b-decode", options.ids),
        ("gpt-oss-20b-decode-weights", options.weights),
    ):
        if path is not None:
            made.append((name, convert(path)))
    if options.law is not None:
        made.append((PREFILLED, convert_prefill(options.law)))
    made += [(name, make_synthetic(name)) for name in SYNTHETIC]
    for name, trace in made:
        old = known[name].content_id if name in known else trace.content_id
        if trace.content_id != old and not options.accept:
            sys.exit(f"{name}: content id {trace.content_id}, the index says {old}; see --accept")
        path = FOLDER / f"{name}.h5"
        if path.is_file() and name in known and trace.content_id == known[name].content_id:
            # Same content: keep its date, so that the same call gives the same bytes.
            with open_trace(path) as file:
                info = dataclasses.replace(trace.info, created_utc=file.info.created_utc)
            trace = dataclasses.replace(trace, info=info)
        tracegen.write(trace, path, overwrite=True)
        print(f"{name}: {trace.content_id}, {path.stat().st_size} bytes")
    names = sorted({*known, *(name for name, _ in made)})
    comment = "Written by scripts/make_traces.py. content_id: what a trace says, not its bytes."
    catalogue.write(FOLDER, [entry(name) for name in names], comment)


def entry(name: str) -> catalogue.Entry:
    """Index entry of a file of the library."""
    path = FOLDER / f"{name}.h5"
    if name in SYNTHETIC:
        return describe.entry(path, name, source="python scripts/make_traces.py")
    if name == PREFILLED:
        source = f"{ESFT_REPOSITORY} at {ESFT_COMMIT[:12]}, results/expert_scores/law"
        return describe.entry(path, name, citation=ESFT_CITATION, source=source)
    source = f"{SOURCE_REPOSITORY} at {SOURCE_COMMIT[:12]}, data/**/*_examples.json"
    return describe.entry(path, name, citation=CITATION, source=source)


if __name__ == "__main__":
    main()
