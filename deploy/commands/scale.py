"""`baton scale`."""

import click
from rich.console import Console

from baton.deploy.client.control_client import control_from
from baton.deploy.client.router_options import RouterChoice
from baton.deploy.cluster.change_requests import SCALE, ScaleRequest, names_in, parse_counts
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.terminal.progress import Lines


@click.command(cls=GroupedCommand)
@click.argument("counts", nargs=-1, metavar="ROLE=COUNT...")
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds for running requests on a worker that leaves; the rest then continue "
              "on other workers.")  # fmt: skip
@takes(RouterChoice)
def scale(choice: RouterChoice, counts: tuple[str, ...], drain: float) -> None:
    """Add or remove workers of the cluster that you started last, while it serves. decode=4 asks
    for four decode ranks over all groups, prefill=2 for two prefill workers. The workers with the
    highest numbers leave.
    """
    try:
        wanted = parse_counts(counts)
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    console = Console()
    request = ScaleRequest(wanted, drain)
    answer = control_from(choice).ask(SCALE, request.arguments, Lines(console))
    for role, workers in names_in(answer).items():
        console.print(f"{role}: {len(workers)} ({', '.join(workers)})", highlight=False)
