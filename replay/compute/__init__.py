"""Expert GEMMs, weight gradients and dense parts as tasks."""
