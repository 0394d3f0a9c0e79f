"""Paths of operands, which each kernel states as its code has it: see `hwmodel.operands`."""

from hwmodel import PATHS, WGMMA_TMA, OperandPath

__all__ = ["PATHS", "WGMMA_TMA", "OperandPath"]
