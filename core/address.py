"""Addresses of servers, `host:port`, and which of them are of this machine alone."""

import ipaddress

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine's, and loopback's of the same family."""


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address as URLs and gRPC need them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return True for localhost, 127.0.0.0/8 and ::1, in brackets or not."""
    name = host.strip("[]").lower()
    if name.removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
