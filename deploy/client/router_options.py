"""The options by which commands find a router and prove themselves to it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from baton.deploy.client.trust import PinnedCertificate, Trust, authorities
from baton.deploy.errors import DeployError
from baton.deploy.files.state_file import newest

CLUSTER_OPTION = click.option(
    "--cluster", default=None, metavar="NAME",
    help="Name of a cluster of yours on this machine; by default, the one that you started last.",
)  # fmt: skip
_OPTIONS = (
    CLUSTER_OPTION,
    click.option("--url", default=None,
                 help="URL of the router; by default, of --cluster."),
    click.option("--api-key", envvar="BATON_API_KEY", default="",
                 help="For a router that asks for keys. In BATON_API_KEY, other users cannot read "
                 "it."),
    click.option("--cacert", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 default=None,
                 help="PEM file with the authority of the router's certificate; by default, this "
                 "machine's authorities, or for your own cluster its certificate."),
)  # fmt: skip


@dataclass(frozen=True)
class RouterAddress:
    """A router, the key that opens it, and the certificates that prove it."""

    url: str
    api_key: str = field(default="", repr=False)
    trust: Trust | None = None  # None: this machine's authorities


def check_one_place(url: str | None, cluster: str | None) -> None:
    """Raise DeployError if both a URL and a name were given."""
    if url is not None and cluster is not None:
        raise DeployError("--url and --cluster both name a cluster: give one of them")


def router_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; `router_from` reads their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def routers_from(
    url: str | None, api_key: str, cacert: Path | None, cluster: str | None
) -> list[RouterAddress]:
    """Return the router at `url`, or all routers of the cluster. Raises as `router_from` does."""
    first = router_from(url, api_key, cacert, cluster)
    if url is not None:
        return [first]
    return [replace(first, url=each) for each in newest(cluster).http_urls]


def router_from(
    url: str | None,
    api_key: str,
    cacert: Path | None,
    cluster: str | None,
    *,
    starting: bool = False,
) -> RouterAddress:
    """Return the router that the options name, or that of the cluster started last.

    starting: a cluster that does not serve yet counts too. Raises NotRunning, or DeployError for a
    file without certificates, or both a URL and a name.
    """
    trust = None if cacert is None else authorities(cacert)
    if url is not None:
        check_one_place(url, cluster)
        return RouterAddress(url, api_key, trust)
    state = newest(cluster, starting=starting)
    if trust is None and state.certificate is not None:
        trust = PinnedCertificate(Path(state.certificate))
    return RouterAddress(state.http_url, api_key, trust)
