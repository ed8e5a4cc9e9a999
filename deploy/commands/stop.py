"""`baton stop`."""

import time
from typing import Any

import click

from baton.deploy.client.control_client import control_from, control_options
from baton.deploy.errors import DeployError

_LOOK_S = 0.05


@click.command()
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds to wait.")
@control_options
def stop(timeout: float, **where: Any) -> None:
    """Stop a cluster, and wait until it is gone: by default, the one that you started last."""
    control = control_from(where, starting=True)
    control.stop()
    until = time.monotonic() + timeout
    while control.alive():
        if time.monotonic() > until:
            raise DeployError(f"{control.title} still stops after {timeout:g} s; {control.remedy}")
        time.sleep(_LOOK_S)
    click.echo(control.stopped)
