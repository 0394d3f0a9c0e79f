"""Types of the numbers that training keeps: weights, gradients, optimiser, activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from replay.errors import unknown

if TYPE_CHECKING:
    from replay.steps.parameters import LayerParameters

BF16 = 2  # bytes of a value
FP32 = 4
SCALE_BYTES = 4  # FP8's scales are FP32 (DeepSeek-V3 technical report, section 3.3.2)
SCALE_BLOCK = 128  # values of a row, or rows and columns of weights, that share one


@dataclass(frozen=True)
class Recipe:
    """Bytes and bits of what training keeps.

    Attributes
    ----------
    name, source
        What it is called, and is taken from.
    weights
        Type of weights that GEMMs in layers read. Norms, gate, embedding and head are BF16.
    gradients
        Bytes of a weight's gradient, which micro-batches add to.
    master, moments
        Bytes of the optimiser's own weight, and of Adam's two moments together.
    operand_bits
        Bits of a value that a GEMM read and its weight gradient reads again.
    activation_bits
        Bits of a value that an activation function read.
    attention_bits
        Bits of a value of attention's results.
    weighs_results
        Whether gate weights multiply what the experts give, which is then kept. Otherwise they
        multiply what the second GEMM reads (Megatron-LM's memory-efficient permutation).
    """

    name: str
    source: str
    weights: Literal["bf16", "fp8"] = "bf16"
    gradients: int = FP32
    master: int = FP32
    moments: int = 2 * FP32
    operand_bits: int = 16
    activation_bits: int = 16
    attention_bits: int = 16
    weighs_results: bool = False

    @property
    def optimiser(self) -> int:
        """Bytes of the optimiser per parameter."""
        return self.master + self.moments


def row_bytes(values: int, bits: int) -> int:
    """Bytes of a row of values; one of fewer than 16 bits has a scale for each block."""
    scales = -(-values // SCALE_BLOCK) * SCALE_BYTES if bits < 16 else 0
    return -(-values * bits // 8) + scales


def weight_bytes(layer: LayerParameters, weights: Literal["bf16", "fp8", "fp32"]) -> int:
    """Bytes of a layer's weights."""
    kept = layer.norms + layer.gate
    multiplied = layer.total - kept
    if weights == "fp8":
        return BF16 * kept + multiplied + -(-multiplied // SCALE_BLOCK**2) * SCALE_BYTES
    return (FP32 if weights == "fp32" else BF16) * layer.total


RECIPES = {
    one.name: one
    for one in (
        Recipe(
            name="megatron-bf16",
            source="Megatron-LM, --bf16 --use-distributed-optimizer",
        ),
        Recipe(
            name="megatron-bf16-moments",
            source="Megatron-LM, --use-precision-aware-optimizer --exp-avg-dtype bf16",
            moments=2 * BF16,
        ),
        Recipe(
            name="deepseek-v3",
            source="DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3",
            weights="fp8",
            moments=2 * BF16,
            operand_bits=8,
            activation_bits=8,
            attention_bits=12,  # E5M6, section 3.3.3
        ),
    )
}


def find(name: str) -> Recipe:
    """Give a recipe by name.

    Raises
    ------
    UserError
        If there is none of that name, with those that there are.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]
