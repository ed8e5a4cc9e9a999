"""`baton worker`."""

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from baton.deploy.errors import StartError
from baton.deploy.interpreter import switch_often
from baton.deploy.local_worker import LocalWorker
from baton.deploy.options import (
    engine_from,
    engine_options,
    streaming_option,
    tls_from,
    transfer_options,
    verify_from,
)
from baton.deploy.preflight import check_model
from baton.deploy.resident import keep_freed_memory, keep_what_is_loaded
from baton.deploy.wiring import MOST_TICKETS
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import ConfigError
from baton.router.errors import ConfigError as HttpConfigError
from baton.worker.config import Role, WorkerConfig


@click.command()
@engine_options
@transfer_options
@click.option("--role", type=click.Choice([role.value for role in Role]), default=Role.BOTH.value,
              show_default=True, help="Its part in a cluster; both: it stands alone.")  # fmt: skip
@click.option("--http", "http_port", type=click.IntRange(0, 65535), default=8000,
              show_default=True, help="Port of its own clients; 0 for any free one.")  # fmt: skip
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=0, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Where it listens, and where its peers find it.")  # fmt: skip
@click.option("--router", "routers", multiple=True, metavar="HOST:PORT",
              help="gRPC address of a router to join; may be given several times.")  # fmt: skip
@click.option("--worker-id", default=None, help="Kept through restarts; made up when left out.")
@click.option("--served-model-name", default=None,
              help="What clients ask for; the folder's name when left out.")  # fmt: skip
@streaming_option
@click.option("--threads", type=click.IntRange(1), default=None,
              help="Compute threads; every core when left out.")  # fmt: skip
@click.option("--drain", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Seconds that requests have to end at the stop.")  # fmt: skip
def worker(
    role: str,
    http_port: int,
    grpc_port: int,
    host: str,
    routers: tuple[str, ...],
    worker_id: str | None,
    served_model_name: str | None,
    incremental_streaming_output: bool,
    threads: int | None,
    drain: float,
    channel: str,
    verify: str | None,
    **given: Any,
) -> None:
    """One worker in this process, without Ray, until Ctrl-C or SIGTERM. It answers its own clients
    over HTTP and gRPC with one engine from end to end: for debugging, and where prefill and decode
    need no workers of their own."""
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
            routers=routers,
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
        )
        asyncio.run(_serve(local, Console(highlight=False)))
    except (ConfigError, HttpConfigError) as err:
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
