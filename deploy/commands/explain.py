"""`baton explain`."""

import json
from pathlib import Path
from typing import Any

import click

from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress, router_options, routers_from
from baton.deploy.errors import DeployError, NotRunning
from baton.deploy.terminal.explanation_text import explanation_lines

MOST_CANDIDATES = 8


@click.command()
@click.argument("request_id", metavar="ID")
@click.option("--json", "json_wanted", is_flag=True, help="What the router says, as JSON.")
@click.option("--all", "every", is_flag=True,
              help=f"All candidates, not the best {MOST_CANDIDATES} of each role.")  # fmt: skip
@router_options
def explain(
    request_id: str,
    json_wanted: bool,
    every: bool,
    url: str | None,
    api_key: str,
    cacert: Path | None,
    cluster: str | None,
) -> None:
    """Say why the request ID went to its workers, what they had cached of its prompt, and where its
    time went.

    ID is that of the reply (chatcmpl-...), the request's own in workers' logs, the X-Request-Id, or
    the client's rid. A router knows what runs, and its last 256 requests. All routers of a cluster
    are asked; --url asks one.
    """
    found = _ask(routers_from(url, api_key, cacert, cluster), request_id)
    if json_wanted:
        click.echo(json.dumps(found, indent=2))
        return
    most = None if every else MOST_CANDIDATES
    for line in explanation_lines(found, most):
        click.echo(line)


def _ask(routers: list[RouterAddress], request_id: str) -> dict[str, Any]:
    """Return the first explanation that a router has. Raises DeployError with what all said."""
    said: dict[str, None] = {}
    for router in routers:
        try:
            return RouterClient(router.url, router.api_key, router.trust).explain(request_id)
        except NotRunning as err:
            said[str(err)] = None
    raise DeployError("\n".join(said))
