"""One router in this process, as `baton router` runs it."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console

from baton.core import logs
from baton.core.errors import BatonError, StoppedError
from baton.core.supervised import ProcessSupervisor
from baton.deploy.config_from import router_from
from baton.deploy.errors import StartError
from baton.deploy.options.router import RouterArguments
from baton.deploy.process.tuning import keep_what_is_loaded, switch_often
from baton.router.config import RouterConfig
from baton.router.server import RouterServer, router_credentials
from baton.rpc.streams import first_of


def run_router(console: Console, folder: Path, arguments: RouterArguments) -> None:
    """Run one router until Ctrl-C or SIGTERM.

    folder: of the model. Raises StartError.
    """
    switch_often()
    try:
        config = replace(
            router_from(folder, arguments.router, arguments.client_tls),
            credentials=arguments.credentials,
            routers=arguments.routers,
            **vars(arguments.listen),
        )
        name = router_credentials(config).identity.name
        logs.set_up(config.telemetry.log_format, worker=name, role="router")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(console, config, arguments.stop.drain_s))
    except BatonError as err:
        raise StartError(str(err)) from err


async def _serve(console: Console, config: RouterConfig, drain_s: float) -> None:
    wanted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, wanted.set)
    owner = ProcessSupervisor()
    server = RouterServer(config, owner)
    started = await server.start()
    try:
        keep_what_is_loaded()
        scheme = "http" if config.client_tls is None else "https"
        console.print(f"ready\n  HTTP     {scheme}://{started.http_address}", soft_wrap=True)
        console.print(f"  gRPC     {started.grpc_address}", soft_wrap=True)
        console.print(f"  workers  {started.internal_address}", soft_wrap=True)
        await first_of(_set(wanted), _until_ended(owner))
        console.print("stopping")
    finally:
        await server.stop(drain_s)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _until_ended(owner: ProcessSupervisor) -> None:
    """Wait until the router has lost what it cannot do without: raises StoppedError."""
    raise StoppedError(f"{await owner.ended()}; start it again")
