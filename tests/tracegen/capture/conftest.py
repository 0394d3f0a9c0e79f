"""Capture needs torch and transformers; without them its tests are skipped, saying so."""

import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny model that routes."""
    import tiny_families

    return tiny_families.tiny_model("mixtral")


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A file to capture to; no temporary one may stay beside it."""
    yield tmp_path / "trace.h5"
    left = {path.name for path in tmp_path.iterdir()}
    assert not {n for n in left if n.startswith(".")}, "a temporary file was left"
