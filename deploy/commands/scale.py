"""`baton scale`."""

from pathlib import Path

import click
from rich.console import Console

from baton.deploy.client.state_file import newest
from baton.deploy.cluster.control import ask
from baton.deploy.cluster.scale_request import parse_counts, scale_request
from baton.deploy.terminal.progress import Lines


@click.command()
@click.argument("counts", nargs=-1, metavar="ROLE=COUNT...")
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds for running requests on a worker that leaves; the rest then continue "
              "on other workers.")  # fmt: skip
def scale(counts: tuple[str, ...], drain: float) -> None:
    """Add or remove workers of the cluster that you started last, while it serves. decode=4 asks
    for four decode ranks over all groups, prefill=2 for two prefill workers. The workers with the
    highest numbers leave.
    """
    try:
        wanted = parse_counts(counts)
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    console = Console()
    there = ask(Path(newest().control), scale_request(wanted, drain), Lines(console))
    for role, workers in there.items():
        console.print(f"{role}: {len(workers)} ({', '.join(workers)})", highlight=False)
