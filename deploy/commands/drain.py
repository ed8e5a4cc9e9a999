"""`baton drain`."""

import click
from rich.console import Console

from baton.deploy.client.control_client import control_from
from baton.deploy.client.router_options import RouterChoice
from baton.deploy.cluster.change_requests import DRAIN, DrainRequest
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.terminal.progress import Lines


@click.command(cls=GroupedCommand)
@click.argument("worker", metavar="WORKER")
@click.option("--drain", "seconds", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds for running requests; the rest then continue on other "
              "workers.")  # fmt: skip
@click.option("--undo", is_flag=True, help="Let the worker take requests again.")
@takes(RouterChoice)
def drain(choice: RouterChoice, worker: str, seconds: float, undo: bool) -> None:
    """Take a worker, such as decode-1, out of service: it takes no new requests, and its process
    stays. It serves again after `baton drain WORKER --undo`, or when its process is restarted.
    """
    request = DrainRequest(worker, seconds, undo)
    control_from(choice).ask(DRAIN, request.arguments, Lines(Console()))
