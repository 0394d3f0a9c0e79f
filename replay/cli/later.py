"""Commands that are imported when they are asked for: a list of all of them needs none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from replay.cli.interrupts import ending_the_process


class Later(TyperCommand):
    """A command, or a group of commands, by its name and summary until it is carried out.

    Parameters
    ----------
    name
        As the user writes it.
    summary
        Of the command's docstring: its first line.
    find
        Imports the function of the command, or the `typer.Typer` of a group.
    prepare
        Called with the command when it is made; gives it as it is used.
    """

    def __init__(self, name: str, summary: str, find: Callable[[], Any], prepare: Callable[[Any], Any]) -> None:
        super().__init__(name=name, help=summary, rich_markup_mode=None)
        self._find, self._prepare = find, prepare

    @cached_property
    def command(self) -> Any:
        """The command itself, with its options."""
        with ending_the_process():
            found = self._find()
        # A group of this command alone makes it as a larger group would.
        holder = typer.Typer(rich_markup_mode=None)
        holder.callback()(_nothing)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=self.name)
        else:
            holder.command(self.name)(found)
        made: Any = typer.main.get_command(holder)
        return self._prepare(made.commands[self.name])

    def make_context(self, *given: Any, **named: Any) -> Any:
        """Read the command's words."""
        return self.command.make_context(*given, **named)


def _nothing() -> None:
    """Nothing goes before the command."""


class _LazyCommands(Mapping[str, Any]):
    """Commands by name, each made when it is looked up."""

    def __init__(self, later: Mapping[str, Later]) -> None:
        self._later = later

    def __getitem__(self, name: str) -> Any:
        return self._later[name].command

    def __iter__(self) -> Iterator[str]:
        return iter(self._later)

    def __len__(self) -> int:
        return len(self._later)


class LaterGroup(TyperGroup):
    """A group that lists its commands by their summaries and imports the one that is called.

    Subclasses say which there are.
    """

    def later(self) -> list[Later]:
        """Give all commands in the order of the help."""
        raise NotImplementedError

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._later = {str(one.name): one for one in self.later()}
        made: Any = _LazyCommands(self._later)
        self.commands = made

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Give the command that is imported when its words are read."""
        return self._later.get(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Give the names in the order of the help."""
        return list(self._later)
