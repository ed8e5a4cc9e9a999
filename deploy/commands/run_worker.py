"""One worker in this process, as `baton worker` runs it."""

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

from rich.console import Console

from baton.api.fields.request_fields import UnknownFields
from baton.core import logs
from baton.core.cache_salt import CacheScope
from baton.core.errors import ConfigError, RankError, StoppedError
from baton.core.role import Role
from baton.deploy.access_options import client_tls_from
from baton.deploy.cluster.preflight import check_device, check_model
from baton.deploy.cluster.wiring import MOST_TICKETS
from baton.deploy.config_from import device_from, engine_from
from baton.deploy.errors import EngineLostError, StartError
from baton.deploy.limit_options import limits_from
from baton.deploy.options import verify_from
from baton.deploy.process.tuning import keep_freed_memory, keep_what_is_loaded, switch_often
from baton.deploy.record_options import telemetry_from
from baton.deploy.router_options import lease_ms_from
from baton.deploy.template_options import template_from
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.rpc.streams import first_of
from baton.standalone.config import LocalConfig
from baton.standalone.worker import LocalWorker
from baton.text.generation_config import SamplingDefaults
from baton.worker.config import WorkerConfig


def run_worker(
    console: Console, role: Role, host: str, threads: int | None, given: dict[str, Any]
) -> None:
    """Run one worker in this process until Ctrl-C or SIGTERM.

    given: values of the options of `baton worker`, by parameter name. Raises StartError, and
    EngineLostError: whoever started the process starts another.
    """
    given["worker_id"] = given["worker_id"] or f"{role}-{os.getpid()}"
    clients = _local_config(host, given)
    logs.set_up(telemetry_from(given).log_format, worker=given["worker_id"])
    keep_freed_memory()
    switch_often()
    device, why = device_from(given, given["tp"])
    if why:
        console.print(f"device: {device} ({why})", soft_wrap=True)
    given |= {"device": device}
    engine = replace(engine_from(given), tp=given["tp"], rank_timeout_s=given["rank_timeout"])
    engine_config = _engine_config(engine, role, threads)
    check_device(engine_config, here=True)
    check_model(engine_config)
    try:
        config = _worker_config(role, host, engine_config, given)
        local = LocalWorker(config, Engine.load(engine_config), clients)
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
    role: Role, host: str, engine: EngineConfig, given: dict[str, Any]
) -> WorkerConfig:
    return WorkerConfig(
        given["worker_id"],
        role,
        engine,
        # A worker that stands alone has no peers.
        host="127.0.0.1" if role is Role.BOTH else given["peer_host"] or host,
        advertise_host=None if role is Role.BOTH else given["advertise_host"],
        grpc_port=given["peer_port"],
        routers=given["routers"],
        lease_ms=lease_ms_from(given["lease"]),
        channel=given["channel"],
        nixl_interfaces=given["nixl_interfaces"],
        verify=verify_from(given["verify"]),
        credentials=given["credentials"],
        profile_folder=given["profile_folder"].absolute(),
        telemetry=telemetry_from(given),
    )


def _local_config(host: str, given: dict[str, Any]) -> LocalConfig:
    """Return the settings for the worker's own clients. Raises StartError."""
    return LocalConfig(
        host=host,
        http_port=given["http_port"],
        grpc_port=given["grpc_port"],
        served_model_name=given["served_model_name"],
        incremental_streaming_output=given["incremental_streaming_output"],
        unknown_fields=UnknownFields(given["unknown_fields"]),
        sampling_defaults=SamplingDefaults(given["sampling_defaults"]),
        template=template_from(given),
        drain_s=given["drain"],
        api_keys=given["api_keys"],
        cache_scope=CacheScope(given["cache_scope"]),
        client_tls=client_tls_from(given),
        allowed_hosts=given["allowed_hosts"],
        cors_origins=given["cors_origins"],
        limits=limits_from(given),
    )


async def _serve(local: LocalWorker, console: Console, scheme: str) -> None:
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
