"""The options of Baton's gRPC connections."""

from collections.abc import Mapping

OPTIONS: tuple[tuple[str, int], ...] = (
    # A peer that comes back is found again in a second, not in gRPC's default two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name also how long one attempt to connect may take: on a full machine a peer's
    # first frame comes late.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A machine that is lost does not close its connections: without pings they, and the calls that
    # wait on them, would stay for ever. The other side must permit pings; every server here does.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # While a ping of gRPC's own (it measures the bandwidth) is under way, no keepalive ping is
    # sent; that ping has a timeout of its own, a minute by default.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_http_proxy", 0),
    # Messages between Baton's own processes are bounded by what made them, not by gRPC's 4 MiB: a
    # prompt of a million tokens is 3 MB, and its log probabilities are more.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
"""The options that clients and servers share."""

_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)

SESSION_OPTIONS: tuple[tuple[str, int], ...] = (
    *OPTIONS,
    # A rank that restarts at its old address must not inherit the back-off of its predecessor.
    _OWN_CONNECTION,
)
"""The options of a router's stream to a rank."""

DATA_OPTIONS: tuple[tuple[str, int], ...] = (
    *OPTIONS,
    # A gigabyte of state must not queue in front of tokens.
    _OWN_CONNECTION,
    ("grpc.http2.write_buffer_size", 8 << 20),
    ("grpc.http2.lookahead_bytes", 16 << 20),
)
"""The options of the connection that carries state."""


def public_server_options(
    max_body_bytes: int, more: Mapping[str, int] | None = None
) -> tuple[tuple[str, int], ...]:
    """Return the options of a server that clients outside the cluster reach.

    max_body_bytes: bound on one request's message. more: further options.
    """
    bounds = {
        "grpc.max_receive_message_length": max_body_bytes,
        # Two routers must not share a port without noticing.
        "grpc.so_reuseport": 0,
    }
    return tuple((dict(OPTIONS) | bounds | dict(more or {})).items())
