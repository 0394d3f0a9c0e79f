"""DeepEP: normal kernels inside a domain and between nodes, and low-latency kernels."""
