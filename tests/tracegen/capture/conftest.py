"""Capture needs torch and transformers; without them its tests are skipped, saying so."""

import importlib.util
import os
import sys
import warnings
from pathlib import Path

HELPERS = ("tiny_families.py", "replay_proof.py", "rank_worker.py")
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))

if os.environ.get("CI") and not HAS_TORCH:
    msg = "torch and transformers are missing: in CI the tests of capture must run"
    raise RuntimeError(msg)

# Helpers are imported by name, not collected: they import torch.
collect_ignore = list(HELPERS)
sys.path.insert(0, str(Path(__file__).parent))

if HAS_TORCH:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside other people's packages
        import torch
        import transformers  # noqa: F401

    torch.set_num_threads(1)  # tiny models, several test processes
