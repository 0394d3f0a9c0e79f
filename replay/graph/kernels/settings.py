"""Numba's settings: those of the environment, and none of a file in the current folder.

Numba takes settings from a file there whenever it is imported and whenever it compiles: where its
cache is, or that it compiles nothing. The folder may be somebody else's. What imports this module
before numba does without.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_is_there = Path(".numba_config.yaml").is_file()
with contextlib.chdir(Path(__file__).parent) if _is_there else contextlib.nullcontext():
    from numba.core import config as config

config._config_fname = ""
