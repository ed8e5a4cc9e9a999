"""Addresses of servers, `host:port`."""


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address as URLs and gRPC need them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
