"""`baton serve`."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import click
from rich.console import Console

from baton.deploy.cluster import Cluster
from baton.deploy.control import listening
from baton.deploy.errors import StartError
from baton.deploy.greeting import greet
from baton.deploy.options import cluster_options, config_from
from baton.deploy.preflight import check_model
from baton.deploy.progress import shown
from baton.deploy.ray_lost import end_if_ray_is_lost
from baton.deploy.scaling import handle_scale
from baton.deploy.since_start import seconds_since_command
from baton.deploy.state_file import control_path, published
from baton.deploy.stop_signal import stop_on_signals
from baton.deploy.vigil import keep_watch


@click.command()
@cluster_options
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Where the router listens; 0.0.0.0 for every network.")  # fmt: skip
@click.option("--http-port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=50051, show_default=True)
@click.option("--drain", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Seconds that requests have to end at the stop.")  # fmt: skip
@click.option("--verbose", is_flag=True, help="Where a start fails, the whole traceback.")
def serve(
    host: str, http_port: int, grpc_port: int, drain: float, verbose: bool, **given: Any
) -> None:
    """Start a cluster and keep it up until Ctrl-C or SIGTERM."""
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
            keep_watch(console, cluster)
    except StartError:
        if verbose:
            console.print_exception()
        raise
    console.print("stopped")
