"""Expert GEMMs and weight gradients as tasks, and the times of dense parts."""
