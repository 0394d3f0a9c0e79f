"""Collectives alone, as nccl-tests times them."""
