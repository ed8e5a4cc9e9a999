"""`baton config`."""

import json

import click

from baton.core.options import Group
from baton.deploy.client.control_client import control_from
from baton.deploy.client.router_options import RouterChoice
from baton.deploy.messages.control import CONFIG
from baton.deploy.messages.start_progress import Silent
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.options.config_file import KINDS, FileCommand, names_of
from baton.deploy.options.config_schema import config_schema
from baton.deploy.options.in_force import settings_in_force, text_of
from baton.deploy.options.setting import DEFAULT, Setting, settings_from

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_CHANGED = click.option("--changed", is_flag=True, help="Leave out what has its default.")


@click.group()
def config() -> None:
    """Print the value of each option and where it comes from: the command line, the file, the
    environment or the default. What is printed is a file that `-f` takes.
    """


def _of_command(name: str) -> click.Command:
    """Return the command that prints what another one would start with."""

    @click.command(
        name, cls=FileCommand, help=f"Print what `baton {name}` with these options uses."
    )
    @_JSON
    @_CHANGED
    @takes(KINDS[name])
    def show(arguments: object, as_json: bool, changed: bool) -> None:
        _print(settings_in_force(click.get_current_context()), name, as_json, changed)

    for param in show.params:
        param.required = False
    return show


for _name in KINDS:
    config.add_command(_of_command(_name))


@config.command(cls=GroupedCommand)
@_JSON
@_CHANGED
@takes(RouterChoice)
def cluster(choice: RouterChoice, as_json: bool, changed: bool) -> None:
    """Print what a running cluster uses: what `baton serve` was given, what `baton scale` and
    `baton apply` have changed since, and what open values stand for there.
    """
    answer = control_from(choice).ask(CONFIG, {}, Silent())
    _print(settings_from(answer["settings"]), "serve", as_json, changed)


@config.command()
def schema() -> None:
    """Print the JSON schema of the file of settings."""
    click.echo(json.dumps(config_schema(), indent=1))


def _print(settings: tuple[Setting, ...], command: str, as_json: bool, changed: bool) -> None:
    shown = [each for each in settings if not changed or each.source != DEFAULT]
    if as_json:
        click.echo(json.dumps([each.as_json() for each in shown], indent=1))
        return
    groups: dict[str, Group] = {
        name: declared.option.group for name, declared in names_of(command).items()
    }
    click.echo(text_of(shown, groups))
