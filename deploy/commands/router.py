"""`baton router`: its options, which are checked before anything is imported that takes long."""

import click
from rich.console import Console

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
from baton.deploy.options.records import check_dump, check_telemetry
from baton.deploy.options.router import RouterArguments


@click.command(cls=FileCommand)
@takes(RouterArguments)
def router(arguments: RouterArguments) -> None:
    """Run one router in this process, without Ray, until Ctrl-C or SIGTERM. Workers that `baton
    worker --router` starts, on this machine or others, register with it.
    """
    options, host = arguments.router, arguments.listen.host
    check_exposed(host, options.api_keys, insecure=arguments.exposure.insecure)
    check_access(options)
    check_dump(options.dump)
    check_telemetry(options.telemetry)
    warning = readable_on_the_way(host, options.api_keys, client_tls_of(arguments.client_tls))
    folder = folder_of(arguments.model)
    check_folder(folder)
    console = Console(highlight=False)
    tell_of_example(console, arguments.model.model)
    if warning is not None:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    import_and_call("baton.deploy.commands.run_router:run_router", console, folder, arguments)
