"""Tests that import this before torch and transformers are skipped where these are missing, and say so."""

import pytest

ENABLE = "needs torch and transformers 5: pip install 'moereplay[capture]'"
pytest.importorskip("torch", reason=ENABLE)
pytest.importorskip("transformers", "5.0", reason=ENABLE)
