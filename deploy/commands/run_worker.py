"""One worker in this process, as `baton worker` runs it."""

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

from rich.console import Console

from baton.api.fields.request_fields import UnknownFields
from baton.core import logs
from baton.core.address import is_loopback
from baton.core.cache_salt import CacheScope
from baton.core.errors import ConfigError, RankError, StoppedError
from baton.core.role import Role
from baton.deploy.access_options import client_tls_from
from baton.deploy.cluster.gpu_demand import GpuDemand
from baton.deploy.cluster.preflight import check_device, check_model, with_ends
from baton.deploy.cluster.wiring import MOST_TICKETS
from baton.deploy.config_from import device_from, engine_from
from baton.deploy.errors import EngineLostError, StartError
from baton.deploy.limit_options import limits_from
from baton.deploy.options import verify_from
from baton.deploy.process.gpu_claim import claimed_gpus
from baton.deploy.process.tuning import keep_freed_memory, keep_what_is_loaded, switch_often
from baton.deploy.record_options import telemetry_from
from baton.deploy.router_options import lease_ms_from
from baton.deploy.template_options import template_from
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.rpc.streams import first_of
from baton.standalone.config import StandaloneConfig
from baton.standalone.worker import StandaloneWorker
from baton.text.generation_config import SamplingDefaults
from baton.worker.config import WorkerConfig


def run_worker(
    console: Console, role: Role, host: str, threads: int | None, options: dict[str, Any]
) -> None:
    """Run one worker in this process until Ctrl-C or SIGTERM.

    options: values of the options of `baton worker`, by parameter name. Raises StartError, and
    EngineLostError: whoever started the process starts another.
    """
    options["worker_id"] = options["worker_id"] or f"{role}-{os.getpid()}"
    clients = _standalone_config(host, options)
    logs.set_up(telemetry_from(options).log_format, worker=options["worker_id"])
    keep_freed_memory()
    switch_often()
    demand = GpuDemand((options["tp"],))
    device = device_from(options, demand)
    if device.why:
        console.print(f"device: {device.name} ({device.why})", soft_wrap=True)
    options |= {"device": device.name}
    engine = replace(engine_from(options), tp=options["tp"], rank_timeout_s=options["rank_timeout"])
    engine_config = _engine_config(engine, role, threads)
    check_device(engine_config, here=True, demand=demand)
    check_model(engine_config, clients.template)
    engine_config = with_ends(engine_config, clients.template)
    try:
        config = _worker_config(role, host, engine_config, options)
        if warning := address_warning(config):
            console.print(warning, style="yellow", soft_wrap=True)
        with claimed_gpus(engine_config, options["worker_id"]):
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
    role: Role, host: str, engine: EngineConfig, options: dict[str, Any]
) -> WorkerConfig:
    return WorkerConfig(
        options["worker_id"],
        role,
        engine,
        # A worker that stands alone has no peers.
        host="127.0.0.1" if role is Role.BOTH else options["peer_host"] or host,
        advertise_host=None if role is Role.BOTH else options["advertise_host"],
        grpc_port=options["peer_port"],
        routers=options["routers"],
        lease_ms=lease_ms_from(options["lease"]),
        channel=options["channel"],
        nixl_interfaces=options["nixl_interfaces"],
        verify=verify_from(options["verify"]),
        credentials=options["credentials"],
        profile_folder=options["profile_folder"].absolute(),
        telemetry=telemetry_from(options),
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


def _standalone_config(host: str, options: dict[str, Any]) -> StandaloneConfig:
    """Return the settings for the worker's own clients. Raises StartError."""
    return StandaloneConfig(
        host=host,
        http_port=options["http_port"],
        grpc_port=options["grpc_port"],
        served_model_name=options["served_model_name"],
        incremental_streaming_output=options["incremental_streaming_output"],
        ping_s=options["sse_ping_interval"],
        unknown_fields=UnknownFields(options["unknown_fields"]),
        closed_objects=options["closed_objects"],
        sampling_defaults=SamplingDefaults(options["sampling_defaults"]),
        template=template_from(options),
        drain_s=options["drain"],
        api_keys=options["api_keys"],
        cache_scope=CacheScope(options["cache_scope"]),
        client_tls=client_tls_from(options),
        allowed_hosts=options["allowed_hosts"],
        cors_origins=options["cors_origins"],
        limits=limits_from(options),
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
