"""`baton worker`: its options, which are checked before torch is imported."""

from dataclasses import replace

import click
from rich.console import Console

from baton.core.role import Role
from baton.deploy.errors import StartError
from baton.deploy.files.example_model import tell_of_example
from baton.deploy.files.model_folder import check_folder
from baton.deploy.lazy_import import import_and_call
from baton.deploy.options.access import (
    check_access,
    check_exposed,
    client_tls_of,
    readable_on_the_way,
)
from baton.deploy.options.click_options import takes
from baton.deploy.options.config_file import FileCommand
from baton.deploy.options.model import folder_of
from baton.deploy.options.records import check_profiles, check_telemetry
from baton.deploy.options.worker import WorkerArguments
from baton.deploy.process.gpu_driver import check_driver


@click.command(cls=FileCommand)
@takes(WorkerArguments)
def worker(arguments: WorkerArguments) -> None:
    """Run one worker in this process, without Ray, until Ctrl-C or SIGTERM. It answers its own
    clients over HTTP and gRPC with one engine: for debugging, or where prefill and decode need no
    separate workers.
    """
    host, role, api_keys = arguments.host, arguments.role, arguments.server.api_keys
    check_exposed(host, api_keys, insecure=arguments.exposure.insecure)
    check_access(arguments.server)
    check_telemetry(arguments.telemetry)
    check_profiles(arguments.profiles)
    check_driver(arguments.engine.compute.device)
    warning = readable_on_the_way(host, api_keys, client_tls_of(arguments.client_tls))
    if arguments.routers and role is Role.BOTH:
        raise StartError("--router needs --role prefill or --role decode; both stands alone")
    if (arguments.credentials is None) != (role is Role.BOTH):
        raise StartError(
            f"--role {role} needs --credentials: peers ask a worker for its certificate"
            if arguments.credentials is None
            else "--credentials is for --role prefill and --role decode; both stands alone"
        )
    model = arguments.engine.model
    folder = folder_of(model)
    check_folder(folder)
    console = Console(highlight=False)
    tell_of_example(console, model.model)
    if warning is not None:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    found = replace(arguments.engine, model=replace(model, model=str(folder), revision=None))
    import_and_call(
        "baton.deploy.commands.run_worker:run_worker", console, replace(arguments, engine=found)
    )
