"""Frozen results of the commands that `cases.py` does not run, as data: a name and its words.

They are run as users run them, so that nothing here knows where the code of a command is. A result
is its JSON file, of which everything is kept but what names the code.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frozen import FOLDER
from measures import LONGEST, Value

from replay.cli.app import main

INPUTS = FOLDER / "inputs"
NAMES_OF_CODE = ("run_id", "version", "code")
"""Keys whose values follow from the text of the code: they change with every edit of it."""

TRAIN = (
    "train --model olmoe-1b-7b --sequence 64 --layers-sampled 1 --scheme ideal --scheme deepep --scheme nccl-alltoall"
)
TRAIN_SPLIT = "train --model olmoe-1b-7b --sequence 64 --layers-sampled 1 --scheme nccl-alltoall"
INFER = (
    "infer --model deepseek-v2-lite --system dgx-h100 --decode-gpus 4 --requests 4 --prompt 64"
    " --output 8 --chunk 128 --tolerance 0.5 --sample-layers 1"
)
PLACE = "place --loads {inputs}/loads.json --ranks 4 --fit 0:2 --windows 2"
PLACE_TRACE = "place toy-zipf --ranks 8 --nodes 2"
COLLECTIVE = "collective --system dgx-h100 --bytes 64K,192K"

HEADS = re.compile(r"(sha256|(\w+/)*format|(.*/)?scheme/(assumes|traffic.*|sequence_parallel|lacking.*|tuned.*))")
"""Paths of the head of a document, which all kinds have alike since; numbers are elsewhere."""

MOVED = re.compile(r"(results/\d+)/arrivals/")
"""The second spec of requests that arrive, which is part of the one now: ``results/0/spec/``."""

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "commands-train": {
        "1f1b": f"{TRAIN} --plan pp=2,dp=4,ep=4,micro_batches=3",
        "zb-v": f"{TRAIN_SPLIT} --plan pp=2,vpp=2,dp=2,ep=2,micro_batches=4 --schedule zb-v --no-fit",
        "dualpipe": f"{TRAIN_SPLIT} --plan pp=2,dp=4,ep=4,micro_batches=4 --schedule dualpipe --no-fit",
        "interleaved": f"{TRAIN} --plan pp=2,vpp=2,dp=4,ep=4,micro_batches=4,recompute=selective"
        " --schedule interleaved",
        "contexts": f"{TRAIN} --plan tp=2,cp=2,dp=2,ep=8,micro_batches=2 --schedule gpipe"
        " --routing zipf:0.6 --seed 3 --samples 2",
        "contexts of four": f"{TRAIN} --plan cp=4,dp=2,ep=2,micro_batches=2 --precision fp8",
        "jitter": f"{TRAIN} --plan pp=2,dp=4,ep=4,micro_batches=3 --jitter lognormal:20:0.5 --jitter-seed 7",
        "drafts": "train --model deepseek-v3 --plan pp=2,dp=8,ep=8,micro_batches=2,mtp=1"
        " --sequence 64 --layers-sampled 1 --scheme deepep --no-fit",
        "nodes": f"{TRAIN} --plan pp=1,dp=16,ep=16,micro_batches=2",
        "a trace": "train --trace toy-zipf --plan pp=1,dp=8,ep=8,micro_batches=2 --scheme deepep"
        " --sequence 256 --layers-sampled 1 --no-fit",
    },
    "commands-infer": {
        "batch": INFER,
        "schemes": f"{INFER} --scheme deepep-ll --scheme nccl-alltoall+dysharp --seed 5",
        "drafts": f"{INFER} --speculative 2:0.7",
        "placed": f"{INFER} --placement eplb:72 --routing zipf:0.6",
        "apart": f"{INFER} --prefill-gpus 2 --prefill-system hgx-h20 --tp 2",
        "in turns": f"{INFER} --interleave tbo --launch eager",
        "lengths": "infer gpt-oss-20b-decode --decode-gpus 4 --requests 4 --chunk 256"
        " --lengths trace --tolerance 0.5 --sample-layers 1",
    },
    "commands-arrivals": {
        "drawn": f"{INFER} --arrivals 200 --count 40 --burstiness 0.5 --arrival-seed 3"
        " --prompts lognormal:64:0.5 --outputs uniform:4:12 --ttft-ms 50 --tpot-ms 20",
        "of a file": f"{INFER} --arrivals {{inputs}}/requests.csv --policy prefill-first"
        " --router least-requests --count 12",
        "drafts": f"{INFER} --arrivals 100 --count 20 --speculative 1:0.8 --arrival-seed 4"
        " --router least-waiting --policy whole-prompts",
        "apart": f"{INFER} --arrivals 100 --count 20 --prefill-gpus 2 --reserve 0.5",
        "at once": f"{INFER} --arrivals once --count 20 --scheme dysharp",
        "searched": f"{INFER} --arrivals 50 --count 24 --search --ttft-ms 40 --tpot-ms 20",
    },
    "commands-collective": {
        "allreduce": f"{COLLECTIVE} --op allreduce --algorithm nccl --algorithm ring"
        " --algorithm tree --algorithm nvls --algorithm one-shot --algorithm two-shot"
        " --algorithm two-shot-stores --algorithm multimem-one-shot --algorithm multimem",
        "allgather": f"{COLLECTIVE} --op allgather --algorithm nccl --algorithm ring"
        " --algorithm nvls --algorithm two-shot --algorithm multimem",
        "reducescatter": f"{COLLECTIVE} --op reducescatter --algorithm nccl --algorithm ring"
        " --algorithm nvls --algorithm two-shot --algorithm multimem",
        "four": f"{COLLECTIVE} --op allreduce --ranks 4 --blocks 3 --algorithm two-shot",
        "nodes": "collective --system dgx-h100-x2 --bytes 256K --op allreduce --algorithm nccl",
    },
    "commands-place": {
        "loads, eplb": f"{PLACE} --algorithm eplb --slots 20",
        "loads, eplb of groups": f"{PLACE} --algorithm eplb --slots 24 --nodes 2 --groups 4",
        "loads, greedy": f"{PLACE} --algorithm greedy",
        "trace, eplb": f"{PLACE_TRACE} --algorithm eplb --slots 72",
        "trace, greedy": f"{PLACE_TRACE} --algorithm greedy",
        "trace, affinity": f"{PLACE_TRACE} --algorithm affinity",
        "trace, file": f"{PLACE_TRACE} --algorithm file --from {{inputs}}/slots.json",
    },
    "commands-choose": {
        "four models": "choose {inputs}/space.toml -o {folder}/choice --top 3",
        "by use": "choose {inputs}/space.toml -o {folder}/choice --top 2 --by mfu --most 3"
        " --system dgx-h100:nccl-alltoall",
    },
    "commands-compare": {
        "uncertain": "compare toy-zipf --layer 0 --scheme deepep --scheme ideal --uncertainty 3 --uncertainty-seed 5"
        " --stack bare",
        "held up": "compare toy-zipf --scheme deepep --scheme dysharp --jitter lognormal:5:0.5 --jitter-seed 3"
        " --stack bare",
    },
    "commands-explain": {
        "two schemes": "explain deepep nccl-alltoall toy-zipf --layer 0 --stack bare",
    },
}
"""Words of every command by case and name; ``--json`` and its file are added."""


def run(words: str) -> Any:
    """The JSON document that a command writes."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        given = [word.format(inputs=INPUTS, folder=folder) for word in words.split()]
        try:
            main([*given, "--json", str(target)])
        except SystemExit as end:
            assert end.code in (0, None), words
        text = target.read_text("utf-8")
    return json.loads(text.replace(str(INPUTS), "inputs"))


def replayed(case: str, name: str) -> dict[str, Value]:
    """Every value of a command's document by its path, and the hash of all of it."""
    document = without_code(run(COMMANDS[case][name]))
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), **dict(leaves(document))}


def without_code(document: Any) -> Any:
    """The document without what names the code, at every depth."""
    if isinstance(document, dict):
        return {key: without_code(value) for key, value in document.items() if key not in NAMES_OF_CODE}
    if isinstance(document, list):
        return [without_code(one) for one in document]
    return document


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Value]]:
    """Numbers and words by path; a list of numbers is one value, and its hash if it is long."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from leaves(value, f"{path}/{key}" if path else key)
    elif isinstance(document, list) and any(isinstance(one, dict | list) for one in document):
        text = json.dumps(document)
        if not isinstance(document[0], dict) and len(text) > 400:
            yield path, _digest(document, text)
        else:
            for index, value in enumerate(document):
                yield from leaves(value, f"{path}/{index}")
    elif isinstance(document, list) and len(document) > LONGEST:
        text = json.dumps(document)
        yield path, _digest(document, text)
    else:
        yield path, document


def _digest(values: list[Any], text: str) -> str:
    return f"{len(values)} entries, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"
