"""Identities and the DNS names that spell them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import ConfigError
from baton.rpc.identity import Identity, ProcessRole, identity_in, number_in

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)


@given(st.sampled_from(ProcessRole), LABELS, LABELS)
def test_a_certificate_spells_exactly_one_process(
    role: ProcessRole, name: str, cluster: str
) -> None:
    identity = Identity(role, name, cluster)
    assert Identity.parse(identity.dns_name) == identity
    assert identity_in(list(identity.dns_names)) == identity


@given(st.text(max_size=70))
def test_no_name_that_is_accepted_is_read_as_another_process(name: str) -> None:
    try:
        identity = Identity(ProcessRole.DECODE, name, "c")
    except ConfigError as error:
        assert repr(name) in str(error)
    else:
        assert Identity.parse(identity.dns_name) == identity


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["router.c.baton"],
        ["d0.decode.c.baton", "d1.decode.c.baton"],
        ["d0.decode.c.baton.evil.org"],
        ["D0.decode.c.baton"],
        ["d0.both.c.baton"],
        ["*.decode.c.baton"],
        ["d0.decode.c.baton\x00.evil.org"],
        ["d0.decode.c.baton\n"],
    ],
)
def test_a_certificate_of_none_or_of_several_proves_nothing(names: list[str]) -> None:
    assert identity_in(names) is None


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("decode-3", 3), ("d0", 0), ("decode-120", 120), ("2-decode-7", 7), ("7", 7),
        ("decode", None), ("decode-3a", None), ("decode-03", None), ("decode-1234567890", None),
    ],
)  # fmt: skip
def test_a_number_in_a_name_is_read_in_one_way(name: str, number: int | None) -> None:
    assert number_in(name) == number


def test_every_router_has_the_name_that_workers_dial() -> None:
    first, second = (Identity(ProcessRole.ROUTER, f"router-{i}", "c").dns_names for i in range(2))
    assert set(first) & set(second) == {"router.c.baton"}
    assert Identity(ProcessRole.DECODE, "router", "c").dns_names == ("router.decode.c.baton",)
