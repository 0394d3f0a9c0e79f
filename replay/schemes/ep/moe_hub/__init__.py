"""MoE-Hub."""
