"""The options of a command without the command."""

from typing import TypeVar

import click
from click.testing import CliRunner

from baton.deploy.options.click_options import GroupedCommand, takes

T = TypeVar("T")


def parse(kind: type[T], *words: str) -> T:
    """Return what a command line makes of a dataclass of options. Raises StartError."""
    found: list[T] = []

    @click.command(cls=GroupedCommand)
    @takes(kind)
    def command(arguments: T) -> None:
        found.append(arguments)

    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]
