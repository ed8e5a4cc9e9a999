"""The spelling of a server's address."""

from urllib.parse import urlsplit

import pytest

from baton.core.address import join_host_port


@pytest.mark.parametrize("host", ["127.0.0.1", "models.example", "::1", "fe80::1"])
def test_an_address_is_read_as_what_it_was_made_of(host: str) -> None:
    found = urlsplit(f"http://{join_host_port(host, 8000)}")
    assert (found.hostname, found.port) == (host, 8000)
