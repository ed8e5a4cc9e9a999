"""Messages between the leader of a replica and its other ranks, and their connection."""

import socket
import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from baton.engine.collectives.comm import Shard
from baton.engine.settings.config import EngineConfig


@dataclass(frozen=True)
class Begin:
    """The first message to a rank. folder: where the ranks meet; see `GlooComm`. memory:
    the descriptor of what they share; see `SharedMemory`."""

    config: EngineConfig
    shard: Shard
    folder: Path
    threads: int
    memory: int


@dataclass(frozen=True)
class RankPools:
    """The sizes of a rank's pools, which are those of the leader's, and of its block tables.

    kept_tokens: see `kept_inputs`. step_bytes: of the largest step, the kept inputs among them.
    trees: see `tree_nodes`
    """

    slots: int
    pages: int
    page_size: int
    table_rows: int
    table_width: int
    kept_tokens: int
    step_bytes: int
    trees: bool = False


@dataclass(frozen=True)
class CaptureSteps:
    """The ranks capture their decode steps now. window: the most tokens that steps verify."""

    window: int


@dataclass(frozen=True)
class Joined:
    """A rank has begun, and meets the others next."""


@dataclass(frozen=True)
class Loaded:
    """A rank has its weights. device: see `device_name`"""

    weight_bytes: int
    device: str


@dataclass(frozen=True)
class HasRoom:
    """A rank's device has room for its pools and its steps."""


@dataclass(frozen=True)
class BooksWanted:
    """The leader asks a rank for its `Books`, behind the steps so far."""


@dataclass(frozen=True)
class Failed:
    """A rank ends because of an error."""

    reason: str


def connected(send_limit_s: float) -> tuple[Connection, socket.socket]:
    """Return the leader's end of a new connection, and the other end for a child process.

    A send that takes longer than `send_limit_s`, because nobody reads, raises BlockingIOError.
    """
    ours, theirs = socket.socketpair()
    limit = struct.pack("ll", *divmod(int(send_limit_s * 1e6), 1_000_000))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return Connection(ours.detach()), theirs
