"""Importing costs little: what is heavy is loaded when it is needed."""

from __future__ import annotations

import subprocess
import sys

from loops import every

HEAVY = ("numba", "llvmlite", "h5py", "networkx", "pandas", "scipy", "torch", "matplotlib")


def loaded_after(code: str) -> set[str]:
    """Modules in a fresh process after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stderr.split())


@every(
    "code",
    [
        "import replay, tracegen, hwmodel, replay.cli.app",
        "import replay.cli\ntry: replay.cli.main(['--help'])\nexcept SystemExit: pass",
        "import replay.cli\ntry: replay.cli.main(['schemes'])\nexcept SystemExit: pass",
        "import hwmodel\nhwmodel.load('dgx-h100')",
    ],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    loaded = loaded_after(code)
    assert "sys" in loaded
    assert not loaded & set(HEAVY)


def test_commands_are_listed_without_the_code_of_schemes() -> None:
    code = "import replay.cli\ntry: replay.cli.main(['--help'])\nexcept SystemExit: pass"
    assert "replay.schemes.registry" not in loaded_after(code)
