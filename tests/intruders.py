"""Those who try to get in: no certificate, a stranger's, another role's, another number's."""

from collections.abc import AsyncIterator, Iterator

import grpc
from certificates import credentials_of, folder_of
from grpc import aio

from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import AUTHORITIES, CERT, KEY
from baton.rpc.identity import ProcessRole

DEADLINE_S = 60.0
NAMES = {
    ProcessRole.ROUTER: "router-0",
    ProcessRole.PREFILL: "p0",
    ProcessRole.DECODE: "d0",
    ProcessRole.OPERATOR: "operator-0",
}


def unproven(address: str, dns_name: str) -> Iterator[tuple[str, aio.Channel]]:
    """Yield channels to `address` of those who have no certificate of the cluster's authority.

    dns_name: of the server. They know everything that is no secret: its name and the authority's
    certificate.
    """
    options = (*OPTIONS, ("grpc.ssl_target_name_override", dns_name))
    authorities = (folder_of("operator", "operator-0") / AUTHORITIES).read_bytes()
    yield "in the clear", aio.insecure_channel(address, options=OPTIONS)
    plain = grpc.ssl_channel_credentials(authorities)
    yield "without a certificate", aio.secure_channel(address, plain, options=options)
    for role, name in NAMES.items():
        folder = folder_of(role, name, "strangers")
        pair = (folder / KEY).read_bytes(), (folder / CERT).read_bytes()
        forged = grpc.ssl_channel_credentials(authorities, *pair)
        yield f"a stranger's {role}", aio.secure_channel(address, forged, options=options)


async def every_unproven_call(
    address: str, dns_name: str, methods: list[str]
) -> AsyncIterator[tuple[str, grpc.StatusCode, str]]:
    """Yield what each unproven caller gets from each RPC: (who and what, status, details)."""
    for who, channel in unproven(address, dns_name):
        async with channel:
            for method in methods:
                call = channel.unary_unary(method)(b"", timeout=DEADLINE_S)
                yield f"{who}: {method}", await call.code(), await call.details()


async def status_by_role(
    address: str, dns_name: str, methods: list[str]
) -> AsyncIterator[tuple[ProcessRole, str, grpc.StatusCode, str]]:
    """Yield what each proven role gets from each RPC: (role, method, status, details)."""
    for role, name in NAMES.items():
        async with credentials_of(role, name).dial(address, dns_name, OPTIONS) as channel:
            for method in methods:
                call = channel.unary_unary(method)(b"", timeout=DEADLINE_S)
                yield role, method, await call.code(), await call.details()
