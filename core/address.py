"""Addresses of servers, `host:port`."""

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine's, and loopback's of the same family."""


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address as URLs and gRPC need them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
