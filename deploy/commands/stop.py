"""`baton stop`."""

import click
import psutil

from baton.deploy.client.state_file import newest
from baton.deploy.errors import DeployError


@click.command()
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds to wait.")
def stop(timeout: float) -> None:
    """Stop the cluster that you started last, and wait until it is gone."""
    state = newest()
    try:
        process = psutil.Process(state.pid)
        process.terminate()
        process.wait(timeout)
    except psutil.NoSuchProcess:
        pass  # it has ended meanwhile
    except psutil.TimeoutExpired as err:
        raise DeployError(
            f"process {state.pid} still stops after {timeout:g} s; wait, or end it with "
            f"`kill -9 {state.pid}`: Ray and the workers end with it"
        ) from err
    click.echo(f"stopped {state.http_url}")
