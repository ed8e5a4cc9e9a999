"""`baton apply`."""

from pathlib import Path

import click
from rich.console import Console

from baton.deploy.client.control_client import local_control
from baton.deploy.cluster.change_requests import APPLY, ApplyRequest, OptionChange, changes_in
from baton.deploy.messages.start_progress import Silent
from baton.deploy.options.config_file import names_of, settings_for
from baton.deploy.options.in_force import read_settings, yaml_of
from baton.deploy.options.serve import ServeArguments
from baton.deploy.options.setting import Setting, Value
from baton.deploy.terminal.progress import Lines


@click.command()
@click.option("--file", "-f", "path", required=True,
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="The file (YAML) that `baton serve -f` takes.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the changes, and make none.")
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds for running requests on each process that is restarted or "
              "leaves.")  # fmt: skip
@click.option("--cluster", metavar="NAME",
              help="A cluster of yours on this machine; by default, the one that you started "
              "last.")  # fmt: skip
def apply(path: Path, dry_run: bool, drain: float, cluster: str | None) -> None:
    """Give a running cluster the settings of a file, while it serves. Numbers of workers change at
    once; for the rest, the processes that need it are restarted one after another. What only a new
    start can change is refused, and then nothing changes. Options that the file does not name stay
    as the command line of `baton serve` gave them.
    """
    settings = _settings_in(path)
    read_settings(ServeArguments, settings)
    control, console = local_control(cluster), Console(highlight=False)
    planned = ApplyRequest(settings, drain, dry_run=True)
    changes = changes_in(control.ask(APPLY, planned.arguments, Silent()))
    for each in changes:
        console.print(_line(each), soft_wrap=True, markup=False)
    if not changes:
        console.print("nothing to change")
    if not dry_run:
        wanted = ApplyRequest(settings, drain, dry_run=False)
        control.ask(APPLY, wanted.arguments, Lines(console))


def _settings_in(path: Path) -> tuple[Setting, ...]:
    """Return what a file says for `baton serve`, by the options' main names."""
    names = names_of("serve")
    return tuple(
        Setting(names[each.name].names[0].removeprefix("--"), each.value, each.source)
        for each in settings_for(path, "serve").values()
    )


def _line(change: OptionChange) -> str:
    if change.new_start:
        how = "needs a new start"
    elif change.restarts:
        how = f"restarts {' and '.join(change.restarts)} processes, one after another"
    else:
        how = "at once"
    before, after = _shown(change.before.value), _shown(change.after.value)
    return f"{change.after.name}: {before} -> {after}  # {change.after.source}; {how}"


def _shown(value: Value) -> str:
    return "left out" if value is None else yaml_of(value)
