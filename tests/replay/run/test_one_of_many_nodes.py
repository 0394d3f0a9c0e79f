"""One node of a machine of many takes as long as the node by itself, under every scheme."""

from __future__ import annotations

import pytest
from tiers import mostly_extended

import hwmodel
import replay
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.registry import supporting_schemes
from tracegen.generate import generate

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3")
PRECISIONS = (None, "fp8", "bf16")


def replayed(name: str, system: str) -> replay.Result:
    """Replay the first layer that the scheme has code for."""
    reasons = []
    for model in MODELS:
        for precision in PRECISIONS:
            trace = generate("zipf", model, ranks=8, tokens_per_rank=2, layers=1, seed=4, skew=0.7)
            try:
                return replay.run(trace, scheme=name, system=system, layer=0, precision=precision)
            except LayerRefusedError as error:
                reasons.append(str(error))
    raise AssertionError(reasons)


@pytest.mark.parametrize("name", mostly_extended(supporting_schemes(hwmodel.load("dgx-h100")), share=3, turn=1))
def test_one_node_of_several_gives_the_result_of_one_to_the_picosecond(name: str) -> None:
    alone, among = (replayed(name, system) for system in ("dgx-h100", "dgx-h100-x4"))
    assert among.layers == alone.layers
