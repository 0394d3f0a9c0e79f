"""Kernels that libraries exchange whole buffers with, for schemes and validation alike."""
