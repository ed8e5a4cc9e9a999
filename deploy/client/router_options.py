"""The options by which commands find a router and prove themselves to it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from baton.core.options import File, Group, option
from baton.deploy.client.trust import PinnedCertificate, Trust, authorities
from baton.deploy.errors import DeployError
from baton.deploy.files.state_file import newest


# fmt: off
@dataclass(frozen=True, kw_only=True)
class RouterChoice:
    """The words by which an operator names a router, and proves the right to ask it."""

    cluster: str | None = option(
        None, Group.ASKED,
        "Name of a cluster of yours on this machine; by default, the one that you started last.",
        metavar="NAME")
    url: str | None = option(None, Group.ASKED, "URL of the router; by default, of --cluster.")
    api_key: str = option(
        "", Group.ASKED,
        "For a router that asks for keys. In BATON_API_KEY, other users cannot read it.",
        envvar="BATON_API_KEY", secret=True)
    cacert: Path | None = option(
        None, Group.ASKED,
        "PEM file with the authority of the router's certificate; by default, this machine's "
        "authorities, or for your own cluster its certificate.", File())

    def check_one_place(self) -> None:
        """Raise DeployError if both a URL and a name were given."""
        if self.url is not None and self.cluster is not None:
            raise DeployError("--url and --cluster both name a cluster: give one of them")
# fmt: on


@dataclass(frozen=True)
class RouterAddress:
    """A router, the key that opens it, and the certificates that prove it."""

    url: str
    api_key: str = field(default="", repr=False)
    trust: Trust | None = None  # None: this machine's authorities


def routers_from(choice: RouterChoice) -> list[RouterAddress]:
    """Return the router of the URL, or all routers of the cluster. Raises as `router_from` does."""
    first = router_from(choice)
    if choice.url is not None:
        return [first]
    return [replace(first, url=each) for each in newest(choice.cluster).http_urls]


def router_from(choice: RouterChoice, *, starting: bool = False) -> RouterAddress:
    """Return the router that the options name, or that of the cluster started last.

    starting: a cluster that does not serve yet counts too. Raises NotRunning, or DeployError for a
    file without certificates, or both a URL and a name.
    """
    trust = None if choice.cacert is None else authorities(choice.cacert)
    if choice.url is not None:
        choice.check_one_place()
        return RouterAddress(choice.url, choice.api_key, trust)
    state = newest(choice.cluster, starting=starting)
    if trust is None and state.certificate is not None:
        trust = PinnedCertificate(Path(state.certificate))
    return RouterAddress(state.http_url, choice.api_key, trust)
