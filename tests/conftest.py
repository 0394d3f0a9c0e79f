"""Settings of hypothesis for every test: speed is never asserted, and a failure repeats itself."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("moereplay", deadline=None, derandomize=True)
settings.load_profile("moereplay")
