"""CAIS (arXiv 2605.05628): computing kernels whose remote accesses the switch merges."""
