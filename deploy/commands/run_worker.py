"""One worker in this process, as `baton worker` runs it."""

import asyncio
import os
import signal
from dataclasses import replace

from rich.console import Console

from baton.core import logs
from baton.core.address import is_loopback
from baton.core.errors import ConfigError, RankError, StoppedError
from baton.core.role import Role
from baton.deploy.cluster.gpu_demand import GpuDemand
from baton.deploy.cluster.preflight import check_device, check_model, with_ends
from baton.deploy.cluster.wiring import MOST_TICKETS
from baton.deploy.config_from import device_from, engine_from
from baton.deploy.errors import EngineLostError, StartError
from baton.deploy.options.access import client_tls_of
from baton.deploy.options.worker import WorkerArguments
from baton.deploy.process.gpu_claim import claimed_gpus
from baton.deploy.process.tuning import keep_freed_memory, keep_what_is_loaded, switch_often
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.rpc.streams import first_of
from baton.standalone.config import StandaloneConfig
from baton.standalone.worker import StandaloneWorker
from baton.worker.config import WorkerConfig


def run_worker(console: Console, arguments: WorkerArguments) -> None:
    """Run one worker in this process until Ctrl-C or SIGTERM.

    Raises StartError, and EngineLostError: whoever started the process starts another.
    """
    role = arguments.role
    worker_id = arguments.worker_id or f"{role}-{os.getpid()}"
    clients = _standalone_config(arguments)
    logs.set_up(arguments.telemetry.log_format, worker=worker_id)
    keep_freed_memory()
    switch_often()
    demand = GpuDemand((arguments.tp,))
    device = device_from(arguments.engine, demand)
    if device.why:
        console.print(f"device: {device.name} ({device.why})", soft_wrap=True)
    engine = replace(engine_from(arguments.engine, device.name), tp=arguments.tp)
    engine_config = _engine_config(engine, role, arguments.threads)
    check_device(engine_config, here=True, demand=demand)
    check_model(engine_config, clients.template)
    engine_config = with_ends(engine_config, clients.template)
    try:
        config = _worker_config(worker_id, engine_config, arguments)
        if warning := address_warning(config):
            console.print(warning, style="yellow", soft_wrap=True)
        with claimed_gpus(engine_config, worker_id):
            local = StandaloneWorker(config, Engine.load(engine_config), clients)
            asyncio.run(_serve(local, console, "http" if clients.client_tls is None else "https"))
    except StoppedError as err:
        raise EngineLostError(str(err)) from err
    except (ConfigError, RankError) as err:
        raise StartError(str(err)) from err


def _engine_config(engine: EngineConfig, role: Role, threads: int | None) -> EngineConfig:
    tickets = min(engine.most_running, MOST_TICKETS) if role is Role.DECODE else 0
    if role is Role.PREFILL:
        engine = engine.for_prompts
    elif role is Role.DECODE:
        engine = engine.for_answers
    return replace(engine, tickets=tickets, threads=threads or len(os.sched_getaffinity(0)))


def _worker_config(
    worker_id: str, engine: EngineConfig, arguments: WorkerArguments
) -> WorkerConfig:
    alone = arguments.role is Role.BOTH  # it has no peers
    return WorkerConfig(
        worker_id,
        arguments.role,
        engine,
        host="127.0.0.1" if alone else arguments.peer_host or arguments.host,
        advertise_host=None if alone else arguments.advertise_host,
        grpc_port=arguments.peer_port,
        routers=arguments.routers,
        credentials=arguments.credentials,
        profile_folder=arguments.profiles.profile_folder,
        telemetry=arguments.telemetry,
        **vars(arguments.transfer),
        **vars(arguments.lease),
    )


def address_warning(config: WorkerConfig) -> str:
    """Say that peers on other hosts cannot reach this worker, where its routers are on one."""
    away = [each for each in config.routers if not is_loopback(each.rpartition(":")[0])]
    if not away or not is_loopback(config.peer_host):
        return ""
    return (
        f"warning: the router {away[0]} is on another host, but this worker tells its peers the "
        f"address {config.peer_host}, which only this host reaches; give --peer-host an address of "
        "this host"
    )


def _standalone_config(arguments: WorkerArguments) -> StandaloneConfig:
    """Return the settings for the worker's own clients. Raises StartError."""
    return StandaloneConfig(
        host=arguments.host,
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        client_tls=client_tls_of(arguments.client_tls),
        drain_s=arguments.stop.drain_s,
        **vars(arguments.server),
    )


async def _serve(local: StandaloneWorker, console: Console, scheme: str) -> None:
    wanted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, wanted.set)
    async with local:
        keep_what_is_loaded()
        console.print(f"ready\n  HTTP  {scheme}://{local.addresses.http}")
        console.print(f"  gRPC  {local.addresses.grpc}")
        await first_of(_set(wanted), local.watch())
        console.print("stopping")


async def _set(event: asyncio.Event) -> None:
    await event.wait()
