"""`baton explain`."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress, RouterChoice, routers_from
from baton.deploy.errors import DeployError, NotRunning, RouterRefused
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.terminal.explanation_text import explanation_lines

MOST_CANDIDATES = 8


@click.command(cls=GroupedCommand)
@click.argument("request_id", metavar="ID")
@click.option("--json", "json_wanted", is_flag=True, help="What the router says, as JSON.")
@click.option("--all", "every", is_flag=True,
              help=f"All candidates, not the best {MOST_CANDIDATES} of each role.")  # fmt: skip
@takes(RouterChoice)
def explain(
    choice: RouterChoice,
    request_id: str,
    json_wanted: bool,
    every: bool,
) -> None:
    """Say why the request ID went to its workers, what they had cached of its prompt, and where its
    time went.

    ID is that of the reply (chatcmpl-...), the request's own in workers' logs, the X-Request-Id, or
    the client's rid. A router knows what runs, and its last 256 requests. All routers of a cluster
    are asked, and the newest request of that ID is told; --url asks one.
    """
    found = _ask(routers_from(choice), request_id)
    if json_wanted:
        click.echo(json.dumps(found, indent=2))
        return
    most = None if every else MOST_CANDIDATES
    for line in explanation_lines(found, most):
        click.echo(line)


def _ask(routers: Sequence[RouterAddress], request_id: str) -> dict[str, Any]:
    """Return the explanation of the newest request that a router knows by this id.

    A client that tries again may reach another router with the same id. Raises DeployError with
    what all said, if none knows it.
    """
    found = []
    failed: list[NotRunning] = []
    for router in routers:
        try:
            found.append(RouterClient(router.url, router.api_key, router.trust).explain(request_id))
        except NotRunning as err:
            failed.append(err)
    if not found:
        raise DeployError("\n".join(_told(failed)))
    newest, *others = sorted(found, key=lambda each: each["age_s"])
    for other in others:
        newest["same_name"] += [other["request_id"], *other["same_name"]]
    return newest


def _told(failed: Iterable[NotRunning]) -> list[str]:
    """Return what routers said, and what several said alike once."""
    alike: dict[object, list[NotRunning]] = {}
    for err in failed:
        same = (err.http_status, err.reason) if isinstance(err, RouterRefused) else str(err)
        alike.setdefault(same, []).append(err)
    return [
        f"{first} ({1 + len(more)} routers say so)" if more else str(first)
        for first, *more in alike.values()
    ]
