"""A cluster in this process, as `baton serve` runs it."""

import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from rich.console import Console

from baton.core.supervised import ProcessSupervisor
from baton.deploy.apply_settings import apply_handlers
from baton.deploy.cluster.preflight import check_device, check_model, with_ends
from baton.deploy.cluster.ray_lost import RayWatch, watching_ray
from baton.deploy.cluster.supervisor import Supervisor
from baton.deploy.commands.run_detached import run_detached
from baton.deploy.config_from import cluster_device_from, serve_config_from
from baton.deploy.errors import RayLostError, StartError
from baton.deploy.files.owned_folder import owned_folder
from baton.deploy.files.state_file import folder, process_named
from baton.deploy.options.serve import ServeArguments
from baton.deploy.options.setting import Setting
from baton.deploy.process.since_start import seconds_since_command
from baton.deploy.process.stop import StopWanted, exit_now, stop_on_signals
from baton.deploy.terminal.progress import shown
from baton.deploy.terminal.startup_banner import banner_of, print_banner


def run_cluster(
    console: Console, arguments: ServeArguments, settings: tuple[Setting, ...] = ()
) -> None:
    """Start a cluster and keep it up until Ctrl-C or SIGTERM, or leave it to itself.

    settings: the options that have made the arguments. Raises StartError.
    """
    device = cluster_device_from(arguments)
    config = serve_config_from(arguments, device, settings)
    if device.why:
        console.print(f"device: {device.name} ({device.why})", highlight=False, soft_wrap=True)
    here = config.ray_address is None
    check_device(config.engine, here=here, demand=config.gpu_demand)
    check_model(config.engine, config.router.template)
    config = replace(config, engine=with_ends(config.engine, config.router.template))
    if arguments.detach:
        run_detached(console, config)
        return
    ray_watch = RayWatch()
    try:
        owner = ProcessSupervisor()
        with stop_on_signals(), watching_ray(ray_watch, owner), ExitStack() as stack:
            own = stack.enter_context(owned_folder(folder()))
            with shown(console) as progress:
                process = process_named(os.getpid())
                supervisor = Supervisor(
                    config,
                    own,
                    progress,
                    owner,
                    process=process,
                    ray_watch=ray_watch,
                    more_handlers=apply_handlers,
                )
                cluster = stack.enter_context(supervisor.running())
            print_banner(console, banner_of(cluster), seconds_since_command())
            with suppress(StopWanted):
                supervisor.watch(partial(console.print, highlight=False, soft_wrap=True))
            console.print(f"stopping; requests have {config.drain_s:g} s to end")
    except StartError:
        if arguments.verbose:
            console.print_exception()
        raise
    except RayLostError as err:
        ray_watch.tell(str(err))  # if its thread has not done so while the cluster ended
        exit_now(1)
    console.print("stopped")
    exit_now()
