"""The tables in docs/options.md. `python tests/options_table.py` (`make docs`) writes them."""

from pathlib import Path

import click

from baton.deploy.commands.apply import apply
from baton.deploy.commands.doctor import doctor
from baton.deploy.commands.drain import drain
from baton.deploy.commands.restart import restart
from baton.deploy.commands.router import router
from baton.deploy.commands.scale import scale
from baton.deploy.commands.serve import serve
from baton.deploy.commands.worker import worker
from baton.deploy.options.click_options import GroupedOption

PAGE = Path(__file__).resolve().parent.parent / "docs/options.md"
BEGIN, END = "<!-- begin generated -->\n", "<!-- end generated -->\n"
HEAD = "| option | default | meaning |\n|---|---|---|\n"


def tables() -> str:
    """Return the tables of `serve`, one a group, and one of each other command, whose last row
    names the options that it has as `serve` has them.
    """
    shared = rows(serve)
    groups = {option.group: "" for option in options(serve) if isinstance(option, GroupedOption)}
    for option in options(serve):
        if isinstance(option, GroupedOption):
            groups[option.group] += row(option)
    found = ["### baton serve\n\n"]
    found += [f"#### {group.value}\n\n{HEAD}{table}\n" for group, table in groups.items()]
    for command in (router, worker, scale, restart, drain, apply, doctor):
        own = {name: row for name, row in rows(command).items() if shared.get(name) != row}
        same = ", ".join(f"`{name}`" for name in rows(command) if name not in own)
        last = f"| as `baton serve` has them | | {same} |\n" if same else ""
        found.append(f"### baton {command.name}\n\n{HEAD}{''.join(own.values())}{last}\n")
    return "\n" + "".join(found)


def options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option)]


def rows(command: click.Command) -> dict[str, str]:
    """Return the rows of a command's options by name."""
    return {option.opts[0]: row(option) for option in options(command)}


def row(option: click.Option) -> str:
    """Return one row. Its default is empty where the option may be left out and has none."""
    default = f"`{option.default}`" if isinstance(option.default, str | int) else ""
    if isinstance(option.default, float):
        default = f"`{option.default:g}`"
    if option.is_flag:
        default = "off"
    if option.required:
        default = "required"
    choices = ""
    if isinstance(option.type, click.Choice):
        choices = f" One of {', '.join(f'`{each}`' for each in option.type.choices)}."
    meaning = (option.help or "").replace("|", "\\|") + choices
    return f"| `{option.opts[0]}` | {default} | {meaning.strip()} |\n"


def with_tables(page: str) -> str:
    """Return `page` with the tables between its marks."""
    head, rest = page.split(BEGIN)
    return head + BEGIN + tables() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
