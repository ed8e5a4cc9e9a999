"""`baton worker`."""

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from baton.api.browser_guard import BrowserPolicy
from baton.core.errors import ConfigError
from baton.core.role import Role
from baton.deploy.cluster.preflight import check_model
from baton.deploy.cluster.wiring import MOST_TICKETS
from baton.deploy.errors import StartError
from baton.deploy.local.worker import LocalWorker
from baton.deploy.options import (
    Seconds,
    browser_options,
    engine_from,
    engine_options,
    lease_ms_from,
    lease_option,
    streaming_option,
    tls_from,
    transfer_options,
    verify_from,
)
from baton.deploy.process.interpreter import switch_often
from baton.deploy.process.malloc_tuning import keep_freed_memory, keep_what_is_loaded
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
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=0, show_default=True)
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=0, show_default=True,
              help="Port of the worker's own metrics page; 0: any.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on, which peers also connect to.")  # fmt: skip
@click.option("--router", "routers", multiple=True, metavar="HOST:PORT",
              help="gRPC address of a router to join; may be given several times.")  # fmt: skip
@click.option(
    "--worker-id",
    default=None,
    help="Kept through restarts; generated when left out.",
)
@click.option("--served-model-name", default=None,
              help="Model name in requests; the folder's name when left out.")  # fmt: skip
@streaming_option
@lease_option
@browser_options
@click.option("--threads", type=click.IntRange(1), default=None,
              help="Compute threads; every core when left out.")  # fmt: skip
@click.option("--drain", type=Seconds(0), default=5.0, show_default=True,
              help="Seconds for running requests at the stop.")  # fmt: skip
def worker(
    role: str,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    host: str,
    routers: tuple[str, ...],
    worker_id: str | None,
    served_model_name: str | None,
    incremental_streaming_output: bool,
    lease: float,
    allowed_hosts: tuple[str, ...],
    cors_origins: tuple[str, ...],
    threads: int | None,
    drain: float,
    channel: str,
    verify: str | None,
    **given: Any,
) -> None:
    """Run one worker in this process, without Ray, until Ctrl-C or SIGTERM. It answers its own
    clients over HTTP and gRPC with one engine: for debugging, or where prefill and decode need no
    separate workers.
    """
    keep_freed_memory()
    switch_often()
    engine_config = _engine_config(engine_from(given), Role(role), threads)
    check_model(engine_config)
    if routers and role == Role.BOTH:
        raise StartError("--router needs --role prefill or --role decode; both stands alone")
    try:
        config = WorkerConfig(
            worker_id or f"{role}-{os.getpid()}",
            Role(role),
            engine_config,
            host=host,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            routers=routers,
            lease_ms=lease_ms_from(lease),
            channel=channel,
            verify=verify_from(verify),
            tls=tls_from(given),
        )
        local = LocalWorker(
            config,
            Engine.load(engine_config),
            http_port=http_port,
            served_model_name=served_model_name,
            incremental_streaming_output=incremental_streaming_output,
            drain_s=drain,
            browsers=BrowserPolicy.of_server(host, allowed_hosts, cors_origins, keys=False),
        )
        asyncio.run(_serve(local, Console(highlight=False)))
    except ConfigError as err:
        raise StartError(str(err)) from err


def _engine_config(engine: EngineConfig, role: Role, threads: int | None) -> EngineConfig:
    tickets = min(engine.max_running, MOST_TICKETS) if role is Role.DECODE else 0
    return replace(engine, tickets=tickets, threads=threads or len(os.sched_getaffinity(0)))


async def _serve(local: LocalWorker, console: Console) -> None:
    wanted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, wanted.set)
    async with local:
        keep_what_is_loaded()
        console.print(f"ready\n  HTTP  http://{local.addresses.http}")
        console.print(f"  gRPC  {local.addresses.grpc}")
        await wanted.wait()
        console.print("stopping")
