"""FlashDMoE."""
