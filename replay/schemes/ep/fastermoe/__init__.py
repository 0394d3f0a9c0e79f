"""FasterMoE."""
