"""`baton worker`: its options, which are checked before torch is imported."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from baton.core.role import Role
from baton.deploy.access_options import (
    access_options,
    check_access,
    check_exposed,
    client_tls_from,
    client_tls_options,
    insecure_option,
    readable_on_the_way,
)
from baton.deploy.errors import StartError
from baton.deploy.files.example_model import tell_of_example
from baton.deploy.files.model_folder import check_folder
from baton.deploy.lazy_import import import_and_call
from baton.deploy.limit_options import limit_options, limits_from
from baton.deploy.number_types import Seconds
from baton.deploy.options import (
    check_names,
    engine_options,
    folder_from,
    transfer_options,
)
from baton.deploy.process.gpu_driver import check_driver
from baton.deploy.record_options import profile_option, telemetry_from, telemetry_options
from baton.deploy.router_options import (
    closed_objects_option,
    lease_option,
    sampling_defaults_option,
    streaming_option,
    unknown_fields_option,
)
from baton.deploy.template_options import template_options
from baton.engine.settings.choices import RANK_TIMEOUT_S


@click.command()
@engine_options
@transfer_options
@click.option("--role", type=click.Choice([role.value for role in Role]), default=Role.BOTH.value,
              show_default=True, help="Role in a cluster; both: stand alone.")  # fmt: skip
@click.option("--http", "http_port", type=click.IntRange(0, 65535), default=8000,
              show_default=True, help="HTTP port for clients; 0: any.")  # fmt: skip
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=0, show_default=True,
              help="gRPC port for clients; 0: any.")  # fmt: skip
@click.option("--peer-port", type=click.IntRange(0, 65535), default=0, show_default=True,
              help="gRPC port for routers and other workers; 0: any.")  # fmt: skip
@click.option("--credentials", type=click.Path(file_okay=False, path_type=Path), default=None,
              help="Folder of this worker's certificate (tls.crt, tls.key, ca.crt), which names "
              "its role and --worker-id, for roles prefill and decode.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on for clients; peers too without --peer-host.")  # fmt: skip
@click.option("--peer-host", default=None,
              help="Address to listen on for routers and other workers, which show certificates; "
              "--host when left out.")  # fmt: skip
@click.option("--advertise-host", default=None,
              help="Address at which routers and other workers reach this one, where it is not "
              "the one that it listens on.")  # fmt: skip
@click.option("--router", "routers", multiple=True, metavar="HOST:PORT",
              help="Internal address of a router to join; may be given several times.")  # fmt: skip
@click.option(
    "--worker-id",
    default=None,
    help="Kept through restarts; generated when left out. A decode worker's ends with its number, "
    "as decode-3.",
)
@click.option("--served-model-name", default=None,
              help="Model name in requests and replies; the folder's name when left out. "
              "Further names follow after commas; * is any name.")  # fmt: skip
@streaming_option
@unknown_fields_option
@closed_objects_option
@sampling_defaults_option
@template_options
@lease_option
@access_options
@client_tls_options
@limit_options
@profile_option
@telemetry_options
@insecure_option
@click.option("--threads", type=click.IntRange(1), default=None,
              help="Compute threads; every core when left out.")  # fmt: skip
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True,
              help="Tensor-parallel ranks, a process each, which share the threads, or "
              "have a GPU each.")  # fmt: skip
@click.option("--rank-timeout", type=Seconds(1), default=RANK_TIMEOUT_S, show_default=True,
              help="Seconds that a rank waits for the others in a step; then the worker's engine "
              "ends.")  # fmt: skip
@click.option("--drain", type=Seconds(0), default=5.0, show_default=True,
              help="Seconds for running requests at the stop.")  # fmt: skip
def worker(role: str, host: str, insecure: bool, threads: int | None, **options: Any) -> None:
    """Run one worker in this process, without Ray, until Ctrl-C or SIGTERM. It answers its own
    clients over HTTP and gRPC with one engine: for debugging, or where prefill and decode need no
    separate workers.
    """
    check_exposed(host, options["api_keys"], insecure=insecure)
    check_access(options)
    limits_from(options)
    telemetry_from(options)
    check_names(options)
    check_driver(options["device"])
    warning = readable_on_the_way(host, options["api_keys"], client_tls_from(options))
    if options["routers"] and role == Role.BOTH:
        raise StartError("--router needs --role prefill or --role decode; both stands alone")
    if (options["credentials"] is None) != (role == Role.BOTH):
        raise StartError(
            f"--role {role} needs --credentials: peers ask a worker for its certificate"
            if options["credentials"] is None
            else "--credentials is for --role prefill and --role decode; both stands alone"
        )
    folder = folder_from(options)
    check_folder(folder)
    console = Console(highlight=False)
    tell_of_example(console, options["model"])
    if warning is not None:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    options |= {"model": str(folder), "revision": None}
    import_and_call(
        "baton.deploy.commands.run_worker:run_worker", console, Role(role), host, threads, options
    )
