"""The first message of a stream between two workers, and what must be true of it."""

from baton.proto import common_pb2
from baton.proto.version import PROTOCOL_MAJOR
from baton.transfer.errors import FingerprintError
from baton.transfer.fingerprint import check
from baton.worker.errors import WorkerError, error_of, make_error

HELLO_S = 5.0
"""How long whoever opened a stream may take to say who it is. Nothing waits for it meanwhile."""


def check_hello(ours: common_pb2.Hello, theirs: common_pb2.Hello) -> None:
    """Raises WorkerError, INCOMPATIBLE, that names both values of whatever differs."""
    origin = ours.worker.worker_id
    check_version(theirs, origin)
    peer = theirs.worker.worker_id
    try:
        check(dict(ours.fingerprint), dict(theirs.fingerprint), peer)
    except FingerprintError as error:
        raise WorkerError(error_of(error, origin)) from error


def check_version(theirs: common_pb2.Hello, origin: str) -> None:
    """Another major version is refused."""
    if theirs.protocol_major == PROTOCOL_MAJOR:
        return
    error = make_error(
        common_pb2.INCOMPATIBLE,
        origin,
        f"{theirs.worker.worker_id or theirs.router_id} speaks protocol {theirs.protocol_major}; "
        f"{origin} speaks {PROTOCOL_MAJOR}: run the same release on both",
    )
    error.expected, error.actual = str(PROTOCOL_MAJOR), str(theirs.protocol_major)
    raise WorkerError(error)
