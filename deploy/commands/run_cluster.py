"""A cluster in this process, as `baton serve` runs it."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rich.console import Console

from baton.deploy.client.owned_folder import owned_folder
from baton.deploy.client.state_file import control_path, folder, published
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.control import listening
from baton.deploy.cluster.control_handlers import control_handlers
from baton.deploy.cluster.preflight import check_device, check_model
from baton.deploy.cluster.ray_lost import end_if_ray_is_lost
from baton.deploy.cluster.worker_watch import watch_workers
from baton.deploy.config_from import config_from
from baton.deploy.errors import StartError
from baton.deploy.process.since_start import seconds_since_command
from baton.deploy.process.stop_signal import stop_on_signals
from baton.deploy.terminal.greeting import greet
from baton.deploy.terminal.progress import shown


def run_cluster(
    console: Console,
    given: dict[str, Any],
    listen: Mapping[str, Any],
    drain_s: float,
    *,
    verbose: bool,
) -> None:
    """Start a cluster and keep it up until Ctrl-C or SIGTERM.

    given: values of `cluster_options`, by parameter name. listen: fields of RouterConfig that say
    where clients reach it. verbose: print the traceback of a start that fails. Raises StartError.
    """
    config = config_from(given)
    config = replace(config, router=replace(config.router, **listen), drain_s=drain_s)
    check_device(config.engine, here=config.ray_address is None)
    check_model(config.engine)
    try:
        with stop_on_signals(), end_if_ray_is_lost(), ExitStack() as stack:
            with shown(console) as progress:
                cluster = stack.enter_context(Cluster(config, progress))
            own = stack.enter_context(owned_folder(folder()))
            model = str(config.engine.model)
            stack.enter_context(listening(control_path(own), control_handlers(cluster)))
            tls = config.router.client_tls
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
