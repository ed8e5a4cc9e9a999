"""The options of gRPC connections."""

import pytest

from baton.rpc.channel_options import (
    DATA_OPTIONS,
    OPTIONS,
    SESSION_OPTIONS,
    public_server_options,
)

SETS = {
    "all": OPTIONS, "session": SESSION_OPTIONS, "data": DATA_OPTIONS,
    "public": public_server_options(1 << 20),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_a_lost_machine_is_noticed_on_every_kind_of_connection(name: str) -> None:
    """A ping of gRPC's own, too, has the short timeout: without the option it is a minute."""
    options = dict(SETS[name])
    keepalive = {key: value for key, value in OPTIONS if "ping" in key or "keepalive" in key}
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"] == 5_000
    assert keepalive.items() <= options.items()


@pytest.mark.parametrize("name", SETS)
def test_no_option_is_given_twice(name: str) -> None:
    assert len(dict(SETS[name])) == len(SETS[name])


def test_a_public_server_bounds_what_it_takes_and_shares_its_port_with_nobody() -> None:
    options = dict(public_server_options(1234))
    assert options["grpc.max_receive_message_length"] == 1234
    assert options["grpc.so_reuseport"] == 0
