"""DeepGEMM's MegaMoE."""
