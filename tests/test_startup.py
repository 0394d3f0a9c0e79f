"""Importing costs little: what is heavy is loaded when it is needed."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numba", "llvmlite", "h5py", "networkx", "pandas", "scipy", "torch", "matplotlib")


def loaded_after(code: str) -> set[str]:
    """Modules in a fresh process after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stderr.split())


def test_nothing_heavy_is_loaded() -> None:
    """By the packages, by a system, by the help of all commands, or by the list of schemes."""
    loaded = loaded_after(
        "import replay, tracegen, hwmodel, replay.cli.app\n"
        "hwmodel.load('dgx-h100')\n"
        "for words in (['--help'], ['schemes']):\n"
        "    try: replay.cli.main(words)\n"
        "    except SystemExit: pass"
    )
    assert {"replay.cli.app", "replay.schemes.registry", "hwmodel"} <= loaded
    assert not loaded & set(HEAVY)


def test_commands_are_listed_without_the_code_of_schemes() -> None:
    code = "import replay.cli\ntry: replay.cli.main(['--help'])\nexcept SystemExit: pass"
    assert "replay.schemes.registry" not in loaded_after(code)
