"""The first message of a stream between two processes, and what must be true of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from baton.core.errors import IncompatibleError, PeerLostError
from baton.proto.common_pb2 import Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR

HELLO_S = 5.0
"""Seconds that whoever opened a stream may take to say Hello, while the listener runs. Nothing
waits for it meanwhile."""
MINORS_APART = 1
"""Minor versions between two processes that work together."""
SHARD = "shard"
"""The name in fingerprints of how a worker divides its states. Peers may do so differently."""
SYNTHETIC = "synthetic_acceptance"
"""The name in fingerprints of the mean length by which a worker accepts drafts at random. Only a
worker whose answers are therefore not the model's has it."""
ABSENT = "(absent)"
"""The value shown for a name that only the other side's fingerprint has."""


def check_hello(ours: Hello, theirs: Hello) -> None:
    """Compare versions and fingerprints. Raises IncompatibleError with both values of each."""
    check_version(theirs, ours.worker.worker_id)
    check_fingerprint(
        dict(ours.fingerprint),
        dict(theirs.fingerprint),
        ours.worker.worker_id,
        theirs.worker.worker_id,
    )


def check_version(theirs: Hello, us: str) -> None:
    """Raise IncompatibleError for a version of the protocol that is not this one or next to it."""
    apart = abs(theirs.protocol_minor - PROTOCOL_MINOR)
    if theirs.protocol_major == PROTOCOL_MAJOR and apart <= MINORS_APART:
        return
    found = f"{theirs.protocol_major}.{theirs.protocol_minor}"
    raise IncompatibleError(
        f"{theirs.worker.worker_id or theirs.router_id} speaks protocol {found}; {us} speaks "
        f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}: run the same release on both, or releases next to "
        "each other",
        expected=_window(),
        actual=found,
    )


def _window() -> str:
    """Return the versions that work with this one."""
    minors = (PROTOCOL_MINOR + by for by in range(-MINORS_APART, MINORS_APART + 1))
    return ", ".join(f"{PROTOCOL_MAJOR}.{minor}" for minor in minors if minor >= 0)


def check_identity(expected: WorkerIdentity, found: WorkerIdentity) -> None:
    """Raise PeerLostError if another worker, or another start of it, answers at the address."""
    if (found.worker_id, found.incarnation) != (expected.worker_id, expected.incarnation):
        raise PeerLostError(
            f"{expected.address} answers as {found.worker_id!r} incarnation {found.incarnation}, "
            f"not as {expected.worker_id!r} {expected.incarnation}"
        )


@dataclass(frozen=True)
class Difference:
    """One name of two fingerprints whose values differ."""

    name: str
    ours: str
    theirs: str


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[Difference]:
    """List every name but SHARD whose values differ, or that one side lacks, in alphabetical
    order.
    """
    pairs = (
        Difference(name, ours.get(name, ABSENT), theirs.get(name, ABSENT))
        for name in sorted((ours.keys() | theirs.keys()) - {SHARD})
    )
    return [pair for pair in pairs if pair.ours != pair.theirs]


def check_fingerprint(
    ours: Mapping[str, str], theirs: Mapping[str, str], us: str, peer: str
) -> None:
    """Compare two workers' fingerprints: what must agree before one may write to the other.

    Raises IncompatibleError that names both values of every difference.
    """
    found = differences(ours, theirs)
    if not found:
        return
    listed = "; ".join(f"{d.name}: ours {d.ours}, theirs {d.theirs}" for d in found)
    raise IncompatibleError(
        f"{peer} cannot exchange state with {us}: {listed}. Start both with the same checkpoint "
        "and the same options",
        expected="; ".join(f"{d.name}={d.ours}" for d in found),
        actual="; ".join(f"{d.name}={d.theirs}" for d in found),
    )
