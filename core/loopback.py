"""Addresses of this machine alone."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True for localhost, 127.0.0.0/8 and ::1, in brackets or not."""
    name = host.strip("[]").lower()
    if name.removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
