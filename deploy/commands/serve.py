"""`baton serve`."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import click
from rich.console import Console

from baton.core.cache_salt import CacheScope
from baton.deploy.access_options import (
    check_cache_scope,
    check_exposed,
    insecure_option,
    readable_on_the_way,
)
from baton.deploy.client.owned_folder import owned_folder
from baton.deploy.client.state_file import control_path, folder, published
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.control import listening
from baton.deploy.cluster.preflight import check_model
from baton.deploy.cluster.ray_lost import end_if_ray_is_lost
from baton.deploy.cluster.scaling import handle_scale
from baton.deploy.cluster.worker_watch import watch_workers
from baton.deploy.errors import StartError
from baton.deploy.number_types import Seconds
from baton.deploy.options import cluster_options, config_from
from baton.deploy.process.since_start import seconds_since_command
from baton.deploy.process.stop_signal import stop_on_signals
from baton.deploy.terminal.greeting import greet
from baton.deploy.terminal.progress import shown


@click.command()
@cluster_options
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address that the router listens on; 0.0.0.0 for every network.")  # fmt: skip
@insecure_option
@click.option("--http-port", "--port", "http_port", type=click.IntRange(0, 65535), default=8000,
              show_default=True,
              help="Port of the router's HTTP server; 0: any free one. Also --port.")  # fmt: skip
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=50051, show_default=True,
              help="Port of the router's gRPC server; 0: any free one.")  # fmt: skip
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
    check_exposed(host, given["api_keys"], insecure=insecure)
    check_cache_scope(CacheScope(given["cache_scope"]), given["api_keys"])
    console = Console()
    config = replace(
        config_from(given), host=host, http_port=http_port, grpc_port=grpc_port, drain_s=drain
    )
    warning = readable_on_the_way(host, config.api_keys, config.client_tls)
    if warning is not None:
        console.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    check_model(config.engine)
    try:
        with stop_on_signals(), end_if_ray_is_lost(), ExitStack() as stack:
            with shown(console) as progress:
                cluster = stack.enter_context(Cluster(config, progress))
            own = stack.enter_context(owned_folder(folder()))
            model = str(config.engine.model)
            scaled = partial(handle_scale, cluster)
            stack.enter_context(listening(control_path(own), scaled))
            tls = config.client_tls
            certificate = None if tls is None else tls.certificate
            stack.enter_context(
                published(own, model, cluster.http_url, cluster.grpc_address, certificate)
            )
            greet(console, cluster, seconds_since_command())
            watch_workers(console, cluster)
    except StartError:
        if verbose:
            console.print_exception()
        raise
    console.print("stopped")
