"""Importing costs little: what is heavy is loaded when it is needed."""

from __future__ import annotations

import subprocess
import sys

import typer

from replay.cli.app import COMMANDS, GROUPS, app
from replay.cli.later import LaterGroup

HEAVY = ("numba", "llvmlite", "h5py", "networkx", "pandas", "scipy", "torch", "matplotlib")


def loaded_after(code: str) -> set[str]:
    """Modules in a fresh process after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
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


def called(*words: str) -> str:
    """Code that carries out a command."""
    return f"import replay.cli\ntry: replay.cli.main({list(words)})\nexcept SystemExit: pass"


def test_commands_are_listed_without_importing_any() -> None:
    loaded = loaded_after(called("--help"))
    there = {f"replay.cli.{module}" for module, _ in COMMANDS.values()}
    unwanted = there | {"numpy", "pydantic", "rich", "hwmodel", "replay.schemes.registry"}
    assert "replay.cli.app" in loaded
    assert not loaded & unwanted
    assert not [name for name in loaded if name.startswith(("replay.experiments.layer", "numpy."))]


def test_a_command_imports_what_it_needs_alone() -> None:
    loaded = loaded_after(called("diff", "--help"))
    assert "replay.cli.diff" in loaded
    assert not loaded & {"numpy", "hwmodel", "replay.cli.replays", "replay.schemes.registry"}
    loaded = loaded_after(called("schemes", "deepep"))
    assert "replay.schemes.registry" in loaded
    assert not loaded & {"replay.cli.replays", "replay.experiments.base.spec", *HEAVY}


def test_commands_are_listed_as_they_say_themselves() -> None:
    listed = typer.main.get_command(app)
    assert isinstance(listed, LaterGroup)
    context = typer.Context(listed)
    names = listed.list_commands(context)
    assert names == [*COMMANDS, *GROUPS] == list(listed.commands)
    for name in names:
        said = [
            [one.get_short_help_str(most) for most in (30, 60, 200)]
            for one in (listed.get_command(context, name), listed.commands[name])
        ]
        assert said[0] == said[1], name
        assert listed.commands[name].name == name
