"""Numba's settings: those of the environment, and none of a file in the current folder.

Numba takes settings from a file there whenever it is imported and whenever it compiles: where its
cache is, or that it compiles nothing. The folder may be somebody else's. What imports this module
before numba does without. What the environment says and numba cannot read is the user's mistake.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path

from tracegen.shared.errors import UserError


def _refuse(said: object) -> UserError:
    text = str(said).strip().splitlines()[0]
    return UserError(f"numba does not begin: {text}; see the environment variables NUMBA_*")


for _feature in filter(None, os.environ.get("NUMBA_CPU_FEATURES", "").split(",")):
    if _feature[0] not in "+-":  # LLVM would end the process
        raise _refuse(f"NUMBA_CPU_FEATURES has {_feature!r}, which has neither + nor - before it")

_is_there = Path(".numba_config.yaml").is_file()
with (
    warnings.catch_warnings(record=True) as _complaints,
    contextlib.chdir(Path(__file__).parent) if _is_there else contextlib.nullcontext(),
):
    warnings.simplefilter("always")
    try:
        from numba.core import config as config
    except ValueError as error:
        raise _refuse(f"{error} (NUMBA_NUM_THREADS)") from None
for _complaint in _complaints:
    if str(_complaint.message).startswith("Environment variable"):
        raise _refuse(_complaint.message)

config._config_fname = ""
