"""`baton status`."""

import json
import time
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import router_from, router_options
from baton.deploy.errors import NotRunning
from baton.deploy.terminal.status_table import natural_width, render


@click.command()
@click.option("--watch", is_flag=True, help="Redraw until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True,
              help="Seconds between two looks, with --watch.")  # fmt: skip
@click.option("--json", "json_wanted", is_flag=True, help="What the router says, as JSON.")
@router_options
def status(
    watch: bool,
    interval: float,
    json_wanted: bool,
    url: str | None,
    api_key: str,
    cacert: Path | None,
) -> None:
    """Show workers and their roles, requests, owners of state slots and KV pages, and hand-offs."""
    found = router_from(url, api_key, cacert)
    router = RouterClient(found.url, found.api_key, found.trust)
    if json_wanted:
        click.echo(json.dumps(router.server_info(), indent=2))
        return
    console = Console()
    if not watch:
        rendered = _look(router)
        if not console.is_terminal:  # a pipe has no width: use as much as needed
            console.width = natural_width(console, rendered)
        console.print(rendered)
        return
    with Live(_look(router), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(_look_again(router), refresh=True)


def _look_again(router: RouterClient) -> RenderableType:
    """Render the status, or one line while the router is being restarted."""
    try:
        return _look(router)
    except NotRunning as err:
        return Text(f"{time.strftime('%H:%M:%S')}  {err}", "red")


def _look(router: RouterClient) -> RenderableType:
    """Render the status once. Raises NotRunning."""
    info = router.server_info()
    try:
        return render(info)
    except KeyError as err:
        raise NotRunning(
            f"what answers at {router.url} is no router of this version: it says nothing of {err}; "
            "what a worker that stands alone has to say, --json shows"
        ) from err
