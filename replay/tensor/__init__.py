"""Transformer layers under tensor parallelism: their work, their schemes, their replays."""
