"""`baton scale`."""

from pathlib import Path

import click
from rich.console import Console

from baton.deploy.control import ask
from baton.deploy.progress import Lines
from baton.deploy.scale_request import parse_counts, scale_request
from baton.deploy.state_file import newest


@click.command()
@click.argument("counts", nargs=-1, metavar="ROLE=COUNT...")
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds that requests have to end on a worker that leaves; what has not ended "
              "then goes on elsewhere.")  # fmt: skip
def scale(counts: tuple[str, ...], drain: float) -> None:
    """Let workers join or leave the cluster that you started last, while it serves: decode=4 makes
    it four decode ranks over all groups, prefill=2 two prefill workers. The last ones leave."""
    try:
        wanted = parse_counts(counts)
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    console = Console()
    there = ask(Path(newest().control), scale_request(wanted, drain), Lines(console))
    for role, workers in there.items():
        console.print(f"{role}: {len(workers)} ({', '.join(workers)})", highlight=False)
