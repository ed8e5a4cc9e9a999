"""`baton restart`."""

import click
from rich.console import Console

from baton.deploy.client.control_client import control_from
from baton.deploy.client.router_options import RouterChoice
from baton.deploy.cluster.change_requests import RESTART, ROLES, RestartRequest, names_in
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.terminal.progress import Lines


@click.command(cls=GroupedCommand)
@click.option(
    "--rolling", is_flag=True, help="One process after another, while the cluster serves."
)
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True,
              help="Only processes of this role; may be given several times.")  # fmt: skip
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds for running requests on each process; other workers continue what a "
              "worker leaves behind.")  # fmt: skip
@takes(RouterChoice)
def restart(choice: RouterChoice, rolling: bool, roles: tuple[str, ...], drain: float) -> None:
    """Restart the workers and then the routers of the cluster that you started last, one after
    another, while it serves: after an upgrade, for example. A router that restarts refuses new
    requests with 503; clients send them to another router, or again.
    """
    if not rolling:
        raise click.UsageError(
            "only --rolling restarts are known; `baton stop` and `baton serve` restart everything "
            "at once"
        )
    request = RestartRequest(roles or ROLES, drain)
    console = Console()
    answer = control_from(choice).ask(RESTART, request.arguments, Lines(console))
    names = names_in(answer)["restarted"]
    console.print(f"restarted {', '.join(names)}", highlight=False, soft_wrap=True)
