"""`baton status`."""

import json
import time
from contextlib import suppress

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from baton.deploy.client.control_client import ControlClient, local_control
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterChoice, router_from
from baton.deploy.errors import NotRunning
from baton.deploy.messages.json_object import JsonObject
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.terminal.member_lines import render_changes, render_complaints, render_start
from baton.deploy.terminal.status_table import natural_width, render


@click.command(cls=GroupedCommand)
@click.option("--watch", is_flag=True, help="Redraw until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True,
              help="Seconds between two looks, with --watch.")  # fmt: skip
@click.option("--json", "json_wanted", is_flag=True, help="What the router says, as JSON.")
@takes(RouterChoice)
def status(
    choice: RouterChoice,
    watch: bool,
    interval: float,
    json_wanted: bool,
) -> None:
    """Show workers and their roles, requests, owners of state slots and KV pages, and hand-offs.
    Says which processes have died, are late or start; with --url, what the router knows alone.
    """
    found = router_from(choice, starting=True)
    router = RouterClient(found.url, found.api_key, found.trust)
    control = None if choice.url else local_control(choice.cluster, starting=True)
    if json_wanted:
        told = _described(control)
        info = {} if told and told["phase"] == "starting" else router.server_info()
        click.echo(json.dumps({"cluster": told} | info if told else info, indent=2))
        return
    console = Console()
    if not watch:
        rendered = _look(router, control)
        if not console.is_terminal:  # a pipe has no width: use as much as needed
            console.width = natural_width(console, rendered)
        console.print(rendered)
        return
    with Live(_look(router, control), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(_look_again(router, control), refresh=True)


def _described(control: ControlClient | None) -> JsonObject | None:
    """Return what the supervisor says; None for one that is not asked, or is being restarted."""
    with suppress(NotRunning):
        return None if control is None else control.describe()
    return None


def _look_again(router: RouterClient, control: ControlClient | None) -> RenderableType:
    """Render the status, or one line while the router is being restarted."""
    try:
        return _look(router, control)
    except NotRunning as err:
        return Text(f"{time.strftime('%H:%M:%S')}  {err}", "red")


def _look(router: RouterClient, control: ControlClient | None) -> RenderableType:
    """Render the status once. Raises NotRunning."""
    told = _described(control)
    if told is not None and told["phase"] != "serving":
        return render_start(told)
    complaints = []
    if told is not None:
        # A supervisor of the release before this one names no changes.
        complaints = render_complaints(told["members"]) + render_changes(told.get("changes", ()))
    try:
        info = router.server_info()
    except NotRunning:
        if not complaints:
            raise
        return Group(*complaints)
    try:
        return Group(render(info), *complaints) if complaints else render(info)
    except KeyError as err:
        raise NotRunning(
            f"what answers at {router.url} is no router of this version: it says nothing of {err}; "
            "what a worker that stands alone has to say, --json shows"
        ) from err
