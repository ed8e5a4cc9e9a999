"""`baton serve`: its options, which are checked before torch and Ray are imported."""

from dataclasses import replace

import click
from rich.console import Console

from baton.deploy.cluster.cluster_name import check_name
from baton.deploy.files.example_model import tell_of_example
from baton.deploy.files.model_folder import check_folder
from baton.deploy.files.state_file import check_unused
from baton.deploy.lazy_import import import_and_call
from baton.deploy.options.access import client_tls_of, readable_on_the_way
from baton.deploy.options.click_options import takes
from baton.deploy.options.config_file import FileCommand
from baton.deploy.options.in_force import settings_in_force
from baton.deploy.options.model import folder_of
from baton.deploy.options.serve import ServeArguments, check_arguments
from baton.deploy.process.gpu_driver import check_driver


@click.command(cls=FileCommand)
@takes(ServeArguments)
def serve(arguments: ServeArguments) -> None:
    """Start a cluster and keep it up until Ctrl-C or SIGTERM; with --detach, until `baton stop`."""
    if arguments.name is not None:
        check_name(arguments.name)
        check_unused(arguments.name)
    check_arguments(arguments)
    router, host = arguments.router, arguments.listen.host
    model = arguments.engine.model
    if arguments.engine.compute.device == "cuda" and arguments.cluster.ray_address is None:
        check_driver("cuda")
    warning = readable_on_the_way(host, router.api_keys, client_tls_of(arguments.client_tls))
    folder = folder_of(model)
    check_folder(folder)
    console = Console()
    tell_of_example(console, model.model)
    if warning is not None:
        console.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    found = replace(arguments.engine, model=replace(model, model=str(folder), revision=None))
    import_and_call(
        "baton.deploy.commands.run_cluster:run_cluster",
        console,
        replace(arguments, engine=found),
        settings_in_force(click.get_current_context()),
    )
