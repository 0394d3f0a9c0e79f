"""What capture costs: a model of about 1 GB runs with it and without, in turns.

Usage: python scripts/measure_capture.py [--device cuda] [--turns 7]

The model is random (qwen3_moe: 16 layers, 32 experts, 4 of them for each token), since routing does
not change what a hook costs. Printed are medians over the turns; the factor is that of pairs
that ran one after the other. On a CPU the model has one thread and the time is that of the
processor, so that what else the machine does does not count. Needs the extra "capture" (torch,
transformers).
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import tracegen

SIZES = {
    "vocab_size": 32768,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}
PREFILL = (4, 256)
"""Sequences and tokens of each in a forward pass of prompts."""
NEW_TOKENS = 32
"""Tokens that are generated for each sequence after a prompt of :data:`PROMPT_TOKENS`."""
PROMPT_TOKENS = 16


def make_model(device: str) -> Any:
    """The model and nothing more; the same weights each time."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_moe", **SIZES)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device).eval()


def prefill(model: Any) -> None:
    """One pass over prompts."""
    with torch.no_grad():
        model(input_ids=torch.ones(PREFILL, dtype=torch.long, device=model.device))


def decode(sequences: int, model: Any) -> None:
    """A generation, prompts included."""
    prompt = torch.ones((sequences, PROMPT_TOKENS), dtype=torch.long, device=model.device)
    model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        pad_token_id=0,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
    )


WORK: dict[str, Callable[[Any], None]] = {
    "prefill, 4 x 256 tokens": prefill,
    "decode, 1 sequence": functools.partial(decode, 1),
    "decode, 16 sequences": functools.partial(decode, 16),
}
"""Name to what is run."""


def seconds(work: Callable[[Any], None], model: Any) -> float:
    """Time that a piece of work takes, until the device has finished it, in seconds."""
    begin = clock(model)
    work(model)
    return clock(model) - begin


def clock(model: Any) -> float:
    """Time of the processor where that does the work, else of the clock, in seconds."""
    if model.device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    """Print a row for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    model = make_model(given.device)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    print(f"{size / 1e9:.2f} GB of weights, {given.device}, torch {torch.__version__}")
    print("| work | alone (ms) | captured (ms) | factor | leaving the block (ms) | rows |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, work in WORK.items():
        work(model)
        alone, captured, leaving, rows = [], [], [], 0
        for turn in range(given.turns):
            with tempfile.TemporaryDirectory() as folder:
                session = tracegen.capture(model, Path(folder) / "a.h5")
                if turn % 2:
                    alone.append(seconds(work, model))
                with session:
                    captured.append(seconds(work, model))
                    rows, end = session.num_tokens, clock(model)
                leaving.append(clock(model) - end)
                if not turn % 2:
                    alone.append(seconds(work, model))
        factors = [c / a for c, a in zip(captured, alone, strict=True)]
        times = [1e3 * statistics.median(of) for of in (alone, captured, leaving)]
        print(f"| {name} | {times[0]:.0f} | {times[1]:.0f} ", end="")
        print(f"| {statistics.median(factors):.3f} | {times[2]:.0f} | {rows} |")


if __name__ == "__main__":
    main()
