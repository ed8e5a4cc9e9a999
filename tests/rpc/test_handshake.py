"""Tests of the rules that a Hello must meet."""

import pytest

from baton.core.errors import IncompatibleError, PeerLostError
from baton.proto.common_pb2 import Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.rpc.handshake import (
    ABSENT,
    check_fingerprint,
    check_hello,
    check_identity,
    check_version,
    differences,
)


def hello(worker_id: str, **fingerprint: str) -> Hello:
    return Hello(
        protocol_major=PROTOCOL_MAJOR,
        protocol_minor=PROTOCOL_MINOR,
        worker=WorkerIdentity(worker_id=worker_id, incarnation=1, address="h:1"),
        fingerprint=fingerprint,
    )


def test_two_that_agree_are_let_in() -> None:
    check_hello(hello("p0", dtype="bf16"), hello("d0", dtype="bf16"))


@pytest.mark.parametrize("by", [-1, 1])
def test_another_major_version_is_refused_with_both_numbers(by: int) -> None:
    theirs = hello("d0")
    theirs.protocol_major += by
    with pytest.raises(IncompatibleError, match="d0 speaks protocol") as refused:
        check_version(theirs, "p0")
    assert f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}" in str(refused.value.expected)
    assert refused.value.actual == f"{PROTOCOL_MAJOR + by}.{PROTOCOL_MINOR}"


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_neighbouring_minor_version_is_let_in(by: int) -> None:
    theirs = hello("d0")
    theirs.protocol_minor += by
    check_version(theirs, "p0")


@pytest.mark.parametrize("by", [-2, 2])
def test_a_minor_version_further_apart_is_refused_with_those_that_work(by: int) -> None:
    theirs = hello("d0")
    theirs.protocol_minor += by
    with pytest.raises(IncompatibleError, match="releases next to each other") as refused:
        check_version(theirs, "p0")
    minors = (PROTOCOL_MINOR - 1, PROTOCOL_MINOR, PROTOCOL_MINOR + 1)
    assert refused.value.expected == ", ".join(f"{PROTOCOL_MAJOR}.{minor}" for minor in minors)
    assert refused.value.actual == f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR + by}"


def test_every_difference_of_two_fingerprints_is_named_with_both_values() -> None:
    with pytest.raises(IncompatibleError, match="d0 cannot exchange state with p0") as refused:
        check_hello(hello("p0", a="1", b="2", c="3"), hello("d0", a="1", b="5", d="4"))
    assert refused.value.expected == f"b=2; c=3; d={ABSENT}"
    assert refused.value.actual == f"b=5; c={ABSENT}; d=4"


def test_a_name_that_one_side_lacks_is_a_difference() -> None:
    assert [d.name for d in differences({}, {"x": "1"})] == ["x"]
    with pytest.raises(IncompatibleError):
        check_fingerprint({"x": "1"}, {}, "p0", "d0")


@pytest.mark.parametrize(("worker_id", "incarnation"), [("p1", 1), ("p0", 2)])
def test_another_worker_or_another_start_at_the_address_is_not_taken_for_it(
    worker_id: str, incarnation: int
) -> None:
    expected = WorkerIdentity(worker_id="p0", incarnation=1, address="h:1")
    check_identity(expected, WorkerIdentity(worker_id="p0", incarnation=1))
    found = WorkerIdentity(worker_id=worker_id, incarnation=incarnation)
    with pytest.raises(PeerLostError, match=f"h:1 answers as '{worker_id}' inc.* {incarnation}"):
        check_identity(expected, found)
