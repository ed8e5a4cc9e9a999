"""`baton stop`."""

import time

import click

from baton.deploy.client.control_client import control_from
from baton.deploy.client.router_options import RouterChoice
from baton.deploy.errors import DeployError
from baton.deploy.options.click_options import GroupedCommand, takes

_LOOK_S = 0.05


@click.command(cls=GroupedCommand)
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds to wait.")
@takes(RouterChoice)
def stop(choice: RouterChoice, timeout: float) -> None:
    """Stop a cluster, and wait until it is gone: by default, the one that you started last."""
    control = control_from(choice, starting=True)
    control.stop()
    until = time.monotonic() + timeout
    while control.alive():
        if time.monotonic() > until:
            raise DeployError(f"{control.title} still stops after {timeout:g} s; {control.remedy}")
        time.sleep(_LOOK_S)
    click.echo(control.stopped)
