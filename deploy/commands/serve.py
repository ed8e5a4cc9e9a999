"""`baton serve`: its options, which are checked before torch and Ray are imported."""

from typing import Any

import click
from rich.console import Console

from baton.deploy.access_options import (
    check_access,
    check_exposed,
    client_tls_from,
    readable_on_the_way,
)
from baton.deploy.cluster.cluster_name import check_name
from baton.deploy.files.example_model import tell_of_example
from baton.deploy.files.model_folder import check_folder
from baton.deploy.files.state_file import check_unused
from baton.deploy.lazy_import import import_and_call
from baton.deploy.limit_options import limits_from
from baton.deploy.number_types import Seconds
from baton.deploy.options import (
    authority_from,
    check_names,
    cluster_options,
    folder_from,
)
from baton.deploy.placement_options import placement_from
from baton.deploy.process.gpu_driver import check_driver
from baton.deploy.record_options import dump_from, telemetry_from
from baton.deploy.router_options import listen_options


@click.command()
@cluster_options
@listen_options
@click.option("--drain", type=Seconds(0), default=5.0, show_default=True,
              help="Seconds for running requests at the stop.")  # fmt: skip
@click.option("--cluster", default=None, metavar="NAME",
              help="Name of the cluster, by which other commands find it; one is made up when left "
              "out.")  # fmt: skip
@click.option("--detach", is_flag=True,
              help="Return when the cluster serves, which then outlives this command and its "
              "terminal, until `baton stop`.")  # fmt: skip
@click.option("--verbose", is_flag=True, help="Print the whole traceback if the start fails.")
def serve(
    host: str,
    insecure: bool,
    http_port: int,
    grpc_port: int,
    drain: float,
    cluster: str | None,
    detach: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Start a cluster and keep it up until Ctrl-C or SIGTERM; with --detach, until `baton stop`."""
    if cluster is not None:
        check_name(cluster)
        check_unused(cluster)
    check_exposed(host, options["api_keys"], insecure=insecure)
    check_access(options)
    for check in (
        authority_from,
        limits_from,
        dump_from,
        telemetry_from,
        placement_from,
        check_names,
    ):
        check(options)
    if options["device"] == "cuda" and options["ray_address"] is None:
        check_driver("cuda")
    warning = readable_on_the_way(host, options["api_keys"], client_tls_from(options))
    folder = folder_from(options)
    check_folder(folder)
    console = Console()
    tell_of_example(console, options["model"])
    if warning is not None:
        console.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    listen = {"host": host, "http_port": http_port, "grpc_port": grpc_port}
    options |= {"cluster": cluster, "model": str(folder), "revision": None}
    import_and_call(
        "baton.deploy.commands.run_cluster:run_cluster",
        console,
        options,
        listen,
        drain,
        detach=detach,
        verbose=verbose,
    )
