"""The limits of the ports that clients reach, and the reasons for which they refuse."""

import ipaddress
from dataclasses import dataclass, fields
from enum import StrEnum

from baton.core.errors import ConfigError
from baton.core.options import Group, Number, Whole, option

MAX_BODY_BYTES = 32 << 20
"""The largest body of a request. A million tokens as text or as ids is under 8 MB."""
LEAST_IDLE = 64
"""The gRPC calls that one address may have open and idle at least. Each call is idle until its
message has come, so with few places calls that begin together would end each other."""
HEALTH = "/health"
"""The one path that is answered while a server sheds load."""
_SECONDS = Number(0, above=True, unit="seconds")


class Refusal(StrEnum):
    """A reason to close a connection or to refuse a request: the label `reason` of a metric."""

    CONNECTIONS = "connections"
    CONNECTIONS_OF_CLIENT = "connections_of_client"
    DESCRIPTORS = "descriptors"
    HANDSHAKE = "handshake"
    HEADER_TIME = "header_time"
    HEADER_SIZE = "header_size"
    BODY_TIME = "body_time"
    MALFORMED = "malformed"
    PIPELINE = "pipeline"
    SLOW_READER = "slow_reader"
    STREAMS = "streams"
    KEY = "key"
    KEY_GUESSES = "key_guesses"


# fmt: off
@dataclass(frozen=True)
class ClientLimits:
    """The limits of one server's HTTP and gRPC ports. Set once, from the command line."""

    header_s: float = option(
        10.0, Group.LIMITS,
        "Most seconds from a connection, or a request's first byte, to the end of its header; then "
        "408. Also for TLS and gRPC handshakes.", _SECONDS, names=("--header-timeout",))
    body_s: float = option(
        60.0, Group.LIMITS,
        "Most seconds from a request's header to the end of its body; then 408.",
        _SECONDS, names=("--body-timeout",))
    # Longer than by clients (httpx: 5 s) and proxies (usually 60 s).
    idle_s: float = option(
        75.0, Group.LIMITS,
        "Seconds that an HTTP connection without a request is kept open. Longer than clients and "
        "proxies keep it, else requests meet its end.", _SECONDS, names=("--idle-timeout",))
    grpc_idle_s: float = option(
        300.0, Group.LIMITS,
        "Seconds that a gRPC connection without a call is kept open, and a health watch or a "
        "reflection stream on which nothing is said.", _SECONDS, names=("--grpc-idle-timeout",))
    write_s: float = option(
        30.0, Group.LIMITS,
        "Most seconds that a client may leave an answer unread; then its connection is closed and "
        "its request cancelled.", _SECONDS, names=("--write-timeout",))
    header_bytes: int = option(
        32 << 10, Group.LIMITS,
        "Largest header of an HTTP request, and largest metadata of a gRPC call, in KiB; then "
        "431.", Whole(1, 1024), names=("--max-header-kb",), factor=1 << 10)
    connections: int = option(
        4096, Group.LIMITS,
        "Most connections of clients, a quarter of them over gRPC; fewer where `ulimit -n` allows "
        "fewer. Beyond, idle ones are closed, else the answer is 503.",
        Whole(16), names=("--max-connections",))
    # Of one address to a port.
    client_connections: int | None = option(
        None, Group.LIMITS,
        "Most HTTP connections of one address, and most gRPC connections; half of all when left "
        "out. Beyond, its idle ones are closed, else the answer is 429.",
        Whole(1), names=("--max-connections-per-client",))
    http_streams: int | None = option(
        None, Group.LIMITS,
        "Most HTTP requests that are answered at once; one each connection when left out. Then "
        "429.", Whole(1), names=("--max-http-streams",))
    grpc_streams: int = option(
        1024, Group.LIMITS,
        "Most gRPC calls that are answered at once; then RESOURCE_EXHAUSTED. Half as many health "
        "watches and reflection streams, and half as many calls whose message has not come, are "
        "open besides; beyond, the longest idle one ends.",
        Whole(1), names=("--max-grpc-streams",))
    client_grpc_streams: int | None = option(
        None, Group.LIMITS,
        "Most gRPC calls of one address, and of one API key, that are answered at once; half of "
        "all when left out. Half as many, at least 64, may be idle besides.",
        Whole(1), names=("--max-grpc-streams-per-client",))
    key_guesses_per_minute: int = option(
        60, Group.LIMITS,
        "Most requests a minute with an unknown API key, or none, that one address is told so; "
        "then 429.", Whole(1), names=("--max-key-guesses",))
    forwarded_allow_ips: str = option(
        "", Group.LIMITS,
        "Addresses or networks of proxies, with commas between. From them alone, X-Forwarded-For "
        "says which address --max-key-guesses counts, and X-Forwarded-Proto how the client "
        "connected.", metavar="IPS")
    # fmt: on

    def __post_init__(self) -> None:
        """Check the values. Raises ConfigError."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and not value > 0:
                raise ConfigError(f"{each.name} is {value}; expected more than 0")
        for proxy in filter(None, self.forwarded_allow_ips.split(",")):
            _check_proxy(proxy.strip())

    def of_client(self, most: int) -> int:
        """Return the most connections of one address to a port. most: of all addresses to it."""
        return min(self.client_connections or max(most // 2, 1), most)

    @property
    def grpc_streams_of_client(self) -> int:
        """The most gRPC calls of one address, and of one key, that are answered at once."""
        return min(self.client_grpc_streams or max(self.grpc_streams // 2, 1), self.grpc_streams)

    @property
    def idle_grpc_streams(self) -> int:
        """The most gRPC calls whose message has not come, and the most of health and reflection."""
        return max(self.grpc_streams // 2, 2 * LEAST_IDLE)

    @property
    def idle_grpc_streams_of_client(self) -> int:
        """The most of `idle_grpc_streams` of one address, and of one key."""
        return max(self.grpc_streams_of_client // 2, LEAST_IDLE)


def _check_proxy(text: str) -> None:
    """Raise ConfigError for what is neither an address nor a network."""
    try:
        ipaddress.ip_network(text)
    except ValueError as err:
        raise ConfigError(
            f"--forwarded-allow-ips names {text!r}; expected addresses and networks of proxies, as "
            "10.0.0.7 or 10.1.0.0/16, with commas between"
        ) from err


def client_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 one, all of
    whose addresses one host may use."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
