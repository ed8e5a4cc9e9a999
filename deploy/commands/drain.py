"""`baton drain`."""

from typing import Any

import click
from rich.console import Console

from baton.deploy.client.control_client import control_from, control_options
from baton.deploy.cluster.change_requests import DRAIN, DrainRequest
from baton.deploy.terminal.progress import Lines


@click.command()
@click.argument("worker", metavar="WORKER")
@click.option("--drain", "seconds", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds for running requests; the rest then continue on other "
              "workers.")  # fmt: skip
@click.option("--undo", is_flag=True, help="Let the worker take requests again.")
@control_options
def drain(worker: str, seconds: float, undo: bool, **where: Any) -> None:
    """Take a worker, such as decode-1, out of service: it takes no new requests, and its process
    stays. It serves again after `baton drain WORKER --undo`, or when its process is restarted.
    """
    request = DrainRequest(worker, seconds, undo)
    control_from(where).ask(DRAIN, request.arguments, Lines(Console()))
