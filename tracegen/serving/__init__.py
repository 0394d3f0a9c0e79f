"""Recording inside serving engines, see SERVING.md: :mod:`tracegen.serving.vllm`."""
