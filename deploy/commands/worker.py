"""`baton worker`."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from baton.api.request_fields import UnknownFields
from baton.core.cache_salt import CacheScope
from baton.core.errors import ConfigError
from baton.core.role import Role
from baton.deploy.access_options import (
    access_options,
    check_cache_scope,
    check_exposed,
    client_tls_from,
    client_tls_options,
    insecure_option,
    readable_on_the_way,
)
from baton.deploy.cluster.preflight import check_model
from baton.deploy.cluster.wiring import MOST_TICKETS
from baton.deploy.errors import StartError
from baton.deploy.limit_options import limit_options, limits_from
from baton.deploy.local.config import LocalConfig
from baton.deploy.local.worker import LocalWorker
from baton.deploy.number_types import Seconds
from baton.deploy.options import (
    engine_from,
    engine_options,
    lease_ms_from,
    lease_option,
    streaming_option,
    transfer_options,
    unknown_fields_option,
    verify_from,
)
from baton.deploy.process.interpreter import switch_often
from baton.deploy.process.malloc_tuning import keep_freed_memory, keep_what_is_loaded
from baton.deploy.record_options import profile_option
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.worker.config import WorkerConfig


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
              help="Address to listen on, which peers also connect to.")  # fmt: skip
@click.option("--router", "routers", multiple=True, metavar="HOST:PORT",
              help="Internal address of a router to join; may be given several times.")  # fmt: skip
@click.option(
    "--worker-id",
    default=None,
    help="Kept through restarts; generated when left out. A decode worker's ends with its number, "
    "as decode-3.",
)
@click.option("--served-model-name", default=None,
              help="Model name in requests; the folder's name when left out.")  # fmt: skip
@streaming_option
@unknown_fields_option
@lease_option
@access_options
@client_tls_options
@limit_options
@profile_option
@insecure_option
@click.option("--threads", type=click.IntRange(1), default=None,
              help="Compute threads; every core when left out.")  # fmt: skip
@click.option("--drain", type=Seconds(0), default=5.0, show_default=True,
              help="Seconds for running requests at the stop.")  # fmt: skip
def worker(role: str, host: str, insecure: bool, threads: int | None, **given: Any) -> None:
    """Run one worker in this process, without Ray, until Ctrl-C or SIGTERM. It answers its own
    clients over HTTP and gRPC with one engine: for debugging, or where prefill and decode need no
    separate workers.
    """
    check_exposed(host, given["api_keys"], insecure=insecure)
    clients = _local_config(host, given)
    check_cache_scope(clients.cache_scope, clients.api_keys)
    keep_freed_memory()
    switch_often()
    engine_config = _engine_config(engine_from(given), Role(role), threads)
    check_model(engine_config)
    if given["routers"] and role == Role.BOTH:
        raise StartError("--router needs --role prefill or --role decode; both stands alone")
    if (given["credentials"] is None) != (role == Role.BOTH):
        raise StartError(
            f"--role {role} needs --credentials: peers ask a worker for its certificate"
            if given["credentials"] is None
            else "--credentials is for --role prefill and --role decode; both stands alone"
        )
    console = Console(highlight=False)
    warning = readable_on_the_way(host, clients.api_keys, clients.client_tls)
    if warning is not None:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    try:
        config = _worker_config(Role(role), host, engine_config, given)
        local = LocalWorker(config, Engine.load(engine_config), clients)
        asyncio.run(_serve(local, console, "http" if clients.client_tls is None else "https"))
    except ConfigError as err:
        raise StartError(str(err)) from err


def _engine_config(engine: EngineConfig, role: Role, threads: int | None) -> EngineConfig:
    tickets = min(engine.max_running, MOST_TICKETS) if role is Role.DECODE else 0
    return replace(engine, tickets=tickets, threads=threads or len(os.sched_getaffinity(0)))


def _worker_config(
    role: Role, host: str, engine: EngineConfig, given: dict[str, Any]
) -> WorkerConfig:
    return WorkerConfig(
        given["worker_id"] or f"{role}-{os.getpid()}",
        role,
        engine,
        host="127.0.0.1" if role is Role.BOTH else host,  # a worker that stands alone has no peers
        grpc_port=given["peer_port"],
        routers=given["routers"],
        lease_ms=lease_ms_from(given["lease"]),
        channel=given["channel"],
        nixl_interfaces=given["nixl_interfaces"],
        verify=verify_from(given["verify"]),
        credentials=given["credentials"],
        profile_folder=given["profile_folder"].absolute(),
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
        await wanted.wait()
        console.print("stopping")
