"""The options of the limits of the ports that clients reach."""

from collections.abc import Callable
from typing import Any

import click

from baton.api.access.client_limits import ClientLimits
from baton.core.errors import ConfigError
from baton.deploy.errors import StartError
from baton.deploy.number_types import Seconds

_DEFAULTS = ClientLimits()
_LIMITS = (
    click.option("--header-timeout", type=Seconds(0, min_open=True), default=_DEFAULTS.header_s,
                 show_default=True,
                 help="Most seconds from a connection, or a request's first byte, to the end of "
                 "its header; then 408. Also for TLS and gRPC handshakes."),
    click.option("--body-timeout", type=Seconds(0, min_open=True), default=_DEFAULTS.body_s,
                 show_default=True,
                 help="Most seconds from a request's header to the end of its body; then 408."),
    click.option("--idle-timeout", type=Seconds(0, min_open=True), default=_DEFAULTS.idle_s,
                 show_default=True,
                 help="Seconds that an HTTP connection without a request is kept open. Longer than "
                 "clients and proxies keep it, else requests meet its end."),
    click.option("--grpc-idle-timeout", type=Seconds(0, min_open=True),
                 default=_DEFAULTS.grpc_idle_s, show_default=True,
                 help="Seconds that a gRPC connection without a call is kept open, and a health "
                 "watch or a reflection stream on which nothing is said."),
    click.option("--write-timeout", type=Seconds(0, min_open=True), default=_DEFAULTS.write_s,
                 show_default=True,
                 help="Most seconds that a client may leave an answer unread; then its connection "
                 "is closed and its request cancelled."),
    click.option("--max-header-kb", type=click.IntRange(1, 1024),
                 default=_DEFAULTS.header_bytes >> 10, show_default=True,
                 help="Largest header of an HTTP request, and largest metadata of a gRPC call, in "
                 "KiB; then 431."),
    click.option("--max-connections", type=click.IntRange(16), default=_DEFAULTS.connections,
                 show_default=True,
                 help="Most connections of clients, a quarter of them over gRPC; fewer where "
                 "`ulimit -n` allows fewer. Beyond, idle ones are closed, else the answer is 503."),
    click.option("--max-connections-per-client", type=click.IntRange(1), default=None,
                 help="Most HTTP connections of one address, and most gRPC connections; half of "
                 "all when left out. Beyond, its idle ones are closed, else the answer is 429."),
    click.option("--max-http-streams", type=click.IntRange(1), default=None,
                 help="Most HTTP requests that are answered at once; one each connection when "
                 "left out. Then 429."),
    click.option("--max-grpc-streams", type=click.IntRange(1), default=_DEFAULTS.grpc_streams,
                 show_default=True,
                 help="Most gRPC calls that are answered at once; then RESOURCE_EXHAUSTED. Half as "
                 "many health watches and reflection streams, and half as many calls whose message "
                 "has not come, are open besides; beyond, the longest idle one ends."),
    click.option("--max-grpc-streams-per-client", type=click.IntRange(1), default=None,
                 help="Most gRPC calls of one address, and of one API key, that are answered at "
                 "once; half of all when left out. Half as many, at least 64, may be idle "
                 "besides."),
    click.option("--max-key-guesses", type=click.IntRange(1),
                 default=_DEFAULTS.key_guesses_per_minute, show_default=True,
                 help="Most requests a minute with an unknown API key, or none, that one address "
                 "is told so; then 429."),
    click.option("--forwarded-allow-ips", default=_DEFAULTS.forwarded_allow_ips, metavar="IPS",
                 help="Addresses or networks of proxies, with commas between. From them alone, "
                 "X-Forwarded-For says which address --max-key-guesses counts, and "
                 "X-Forwarded-Proto how the client connected."),
)  # fmt: skip


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; `limits_from` reads their values."""
    for option in reversed(_LIMITS):
        command = option(command)
    return command


def limits_from(options: dict[str, Any]) -> ClientLimits:
    """Return the limits. options: the options' values by parameter name. Raises StartError."""
    try:
        return _limits(options)
    except ConfigError as err:
        raise StartError(str(err)) from err


def _limits(options: dict[str, Any]) -> ClientLimits:
    return ClientLimits(
        header_s=options["header_timeout"],
        body_s=options["body_timeout"],
        idle_s=options["idle_timeout"],
        grpc_idle_s=options["grpc_idle_timeout"],
        write_s=options["write_timeout"],
        header_bytes=options["max_header_kb"] << 10,
        connections=options["max_connections"],
        client_connections=options["max_connections_per_client"],
        http_streams=options["max_http_streams"],
        grpc_streams=options["max_grpc_streams"],
        client_grpc_streams=options["max_grpc_streams_per_client"],
        key_guesses_per_minute=options["max_key_guesses"],
        forwarded_allow_ips=options["forwarded_allow_ips"],
    )
