"""`baton serve`."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from baton.api.browser_guard import is_loopback
from baton.deploy.client.state_file import control_path, published
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.control import listening
from baton.deploy.cluster.preflight import check_model
from baton.deploy.cluster.ray_lost import end_if_ray_is_lost
from baton.deploy.cluster.scaling import handle_scale
from baton.deploy.cluster.worker_watch import watch_workers
from baton.deploy.errors import StartError
from baton.deploy.options import Seconds, cluster_options, config_from
from baton.deploy.process.since_start import seconds_since_command
from baton.deploy.process.stop_signal import stop_on_signals
from baton.deploy.terminal.greeting import greet
from baton.deploy.terminal.progress import shown


@click.command()
@cluster_options
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address that the router listens on; 0.0.0.0 for every network.")  # fmt: skip
@click.option("--insecure", is_flag=True,
              help="Let everybody who reaches --host call, without API keys.")  # fmt: skip
@click.option("--http-port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=50051, show_default=True)
@click.option("--drain", type=Seconds(0), default=5.0, show_default=True,
              help="Seconds for running requests at the stop.")  # fmt: skip
@click.option("--verbose", is_flag=True, help="Print the whole traceback if the start fails.")
def serve(
    host: str,
    insecure: bool,
    http_port: int,
    grpc_port: int,
    drain: float,
    verbose: bool,
    **given: Any,
) -> None:
    """Start a cluster and keep it up until Ctrl-C or SIGTERM."""
    _check_exposed(host, given["api_keys"], insecure)
    console = Console()
    config = replace(
        config_from(given), host=host, http_port=http_port, grpc_port=grpc_port, drain_s=drain
    )
    check_model(config.engine)
    try:
        with stop_on_signals(), end_if_ray_is_lost(), ExitStack() as stack:
            with shown(console) as progress:
                cluster = stack.enter_context(Cluster(config, progress))
            model = str(config.engine.model)
            scaled = partial(handle_scale, cluster)
            stack.enter_context(listening(control_path(), scaled))
            stack.enter_context(published(model, cluster.http_url, cluster.grpc_address))
            greet(console, cluster, seconds_since_command())
            watch_workers(console, cluster)
    except StartError:
        if verbose:
            console.print_exception()
        raise
    console.print("stopped")


def _check_exposed(host: str, api_keys: Path | None, insecure: bool) -> None:
    """Raise StartError for an address that others may reach where nothing keeps them out."""
    if api_keys is None and not insecure and not is_loopback(host):
        raise StartError(
            f"--host {host} is not loopback, and everybody who reaches it could use this cluster; "
            "give --api-keys FILE (`baton keys add NAME` makes one), or --insecure to allow that"
        )
