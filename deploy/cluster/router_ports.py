"""The ports of a cluster's routers: those of router i are the options' plus i."""

from contextlib import ExitStack
from dataclasses import dataclass

from baton.core.address import WILDCARDS
from baton.deploy.errors import StartError
from baton.deploy.process.ports import settle
from baton.router.config import RouterConfig

_LAST_PORT = 65535


@dataclass(frozen=True)
class RouterPorts:
    """The ports of one router."""

    http: int
    grpc: int
    internal: int  # where workers register


def settle_routers(router: RouterConfig, count: int, held: ExitStack) -> tuple[RouterPorts, ...]:
    """Return the ports of `count` routers. A port that is 0 is any free one for each.

    held: keeps the ports reserved. Raises StartError if one cannot be used. Workers connect to the
    internal host itself, so one that stands for all cannot be used.
    """
    if router.internal_host in WILDCARDS:
        raise StartError(
            f"--internal-host is {router.internal_host}; name the one address at which workers "
            "reach the router"
        )
    _check_ranges(router, count)
    return tuple(_settle_one(router, number, held) for number in range(count))


def wanted_ports(router: RouterConfig, count: int) -> tuple[RouterPorts, ...]:
    """Return the ports of `count` routers on whichever nodes they are; 0: any free one there.

    Raises StartError for ports that two would share. They may come to be on one node.
    """
    _check_ranges(router, count)
    wanted = (router.http_port, router.grpc_port, router.internal_port)
    return tuple(RouterPorts(*(_nth(port, number) for port in wanted)) for number in range(count))


def _settle_one(router: RouterConfig, number: int, held: ExitStack) -> RouterPorts:
    clients = settle(
        router.host,
        {
            "--http-port": _nth(router.http_port, number),
            "--grpc-port": _nth(router.grpc_port, number),
        },
        held,
    )
    wanted = {"--internal-port": _nth(router.internal_port, number)}
    internal = settle(router.internal_host, wanted, held, "--internal-host")
    return RouterPorts(clients["--http-port"], clients["--grpc-port"], internal["--internal-port"])


def _check_ranges(router: RouterConfig, count: int) -> None:
    """Raise StartError for ports that two routers would share, or that do not exist."""
    users: dict[int, str] = {}
    for option, first in (
        ("--http-port", router.http_port),
        ("--grpc-port", router.grpc_port),
        ("--internal-port", router.internal_port),
    ):
        for number in range(count if first else 0):
            port, user = first + number, f"{option} of router-{number}"
            if port > _LAST_PORT:
                raise StartError(
                    f"{option} is {first}, so that router-{number} would have port {port}; with "
                    f"--routers {count} it may be at most {_LAST_PORT - count + 1}"
                )
            if port in users:
                raise StartError(
                    f"port {port} would be {users[port]} and {user}; router i takes each port "
                    "plus i: leave more room between them"
                )
            users[port] = user


def _nth(port: int, number: int) -> int:
    return port + number if port else 0
