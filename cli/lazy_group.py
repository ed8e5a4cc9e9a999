"""A command group that imports a subcommand only when it is called: torch and Ray take seconds."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Lazy:
    """A subcommand's place, as "module:name", and its line in the help."""

    at: str
    help: str

    def load(self) -> click.Command:
        module, _, name = self.at.partition(":")
        command = vars(importlib.import_module(module))[name]
        assert isinstance(command, click.Command)
        return command


class LazyGroup(click.Group):
    def __init__(self, name: str, subcommands: Mapping[str, Lazy], help_text: str) -> None:
        super().__init__(name, help=help_text)
        self._subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._subcommands)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self._subcommands[name].load() if name in self._subcommands else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help from the given lines, so that it imports no subcommand."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._subcommands.items()])
