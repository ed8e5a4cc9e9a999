"""`baton router`: its options, which are checked before anything is imported that takes long."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from baton.deploy.access_options import (
    check_access,
    check_exposed,
    client_tls_from,
    readable_on_the_way,
)
from baton.deploy.files.example_model import tell_of_example
from baton.deploy.files.model_folder import check_folder
from baton.deploy.lazy_import import import_and_call
from baton.deploy.limit_options import limits_from
from baton.deploy.number_types import Seconds
from baton.deploy.options import folder_from, model_options
from baton.deploy.record_options import dump_from, telemetry_from
from baton.deploy.router_options import check_served_name, listen_options, router_options


@click.command()
@model_options
@router_options
@listen_options
@click.option("--credentials", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="Folder of this router's certificate (tls.crt, tls.key, ca.crt), as `baton "
              "certs issue router NAME` makes it.")  # fmt: skip
@click.option("--routers", type=click.IntRange(1), default=1, show_default=True,
              help="Number of routers that the cluster has; this one serves a part of every API "
              "key's caps.")  # fmt: skip
@click.option("--drain", type=Seconds(0), default=5.0, show_default=True,
              help="Seconds for running requests at the stop.")  # fmt: skip
def router(host: str, insecure: bool, http_port: int, grpc_port: int, **options: Any) -> None:
    """Run one router in this process, without Ray, until Ctrl-C or SIGTERM. Workers that `baton
    worker --router` starts, on this machine or others, register with it.
    """
    check_exposed(host, options["api_keys"], insecure=insecure)
    check_access(options)
    for check in (limits_from, dump_from, telemetry_from, check_served_name):
        check(options)
    warning = readable_on_the_way(host, options["api_keys"], client_tls_from(options))
    folder = folder_from(options)
    check_folder(folder)
    console = Console(highlight=False)
    tell_of_example(console, options["model"])
    if warning is not None:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    listen = {"host": host, "http_port": http_port, "grpc_port": grpc_port}
    import_and_call("baton.deploy.commands.run_router:run_router", console, folder, options, listen)
