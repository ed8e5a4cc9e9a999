"""NIXL in our terms: the one file that knows its API.

Each stream between two workers has an agent of its own. Destroying the agent then ends every
transfer between those two workers and no other. This was measured with UCX over TCP: a writer that
was stopped and resumed still wrote after `remove_remote_agent` or `deregister_memory` on the
receiver's side, but not after the receiver's agent had been destroyed. An agent costs 50 ms and 14
file descriptors.

Agents run without NIXL's progress thread, because that thread spins a core. The user of an agent
polls it.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.transfer.channels.nixl import ucx
from baton.transfer.channels.trusted_network import LOOPBACK
from baton.transfer.errors import ChannelError
from baton.transfer.memory.regions import Span

BACKEND = "UCX"
ATTEMPTS = 3
_INITIATOR = "NIXL_INIT_AGENT"

Parts = NDArray[np.uint64]
"""[parts, 3] uint64: address, bytes and device of each run of bytes."""


class NixlAgent:
    """One NIXL agent, with this worker's pools registered. Used by one thread at a time.

    Every method except `close` raises ChannelError. Callers hold numbers for prepared pools and
    posts, never NIXL's handles, because a handle keeps its agent alive.
    """

    def __init__(
        self, name: str, spans: Sequence[Span], devices: Sequence[str] = (LOOPBACK,)
    ) -> None:
        """spans: the pools. Each one that has bytes is registered as one region. devices: UCX
        listens and connects on no others.

        Raises ChannelError also where NIXL is not installed or does not start, and ConfigError as
        `ucx.check_settings` does.
        """
        check_installed()
        ucx.confine(devices)
        ucx.check_shared_memory()
        from nixl import _bindings as bindings
        from nixl._api import nixl_agent, nixl_agent_config

        logging.getLogger("nixl").setLevel(logging.WARNING)
        self._errors = tuple(
            kind for name, kind in vars(bindings).items() if name.endswith("Error")
        )
        self.name = name
        self._prepared: list[Any] = []
        self._posts: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._memory = _memory(spans[0])
        config = nixl_agent_config(enable_prog_thread=False, backends=[BACKEND])
        with self._ours("start"):
            self._agent: Any = self._start(lambda: nixl_agent(name, config))
            regions = [(s.address, s.nbytes, s.device or 0, "") for s in spans if s.nbytes]
            if regions:
                self._agent.register_memory(regions, self._memory)

    @property
    def metadata(self) -> bytes:
        """Return what a peer's agent needs to write to this one or to read from it."""
        with self._ours("describe its memory"):
            return bytes(self._agent.get_agent_metadata())

    def add_peer(self, metadata: bytes) -> str:
        """Register a peer by its metadata. Returns the peer's name for later calls."""
        with self._ours("read the peer's metadata"):
            name = self._agent.add_remote_agent(metadata)
            return name.decode() if isinstance(name, bytes) else str(name)

    def prepare(self, span: Span, peer: str | None) -> int:
        """Prepare a descriptor for every block of a pool. Returns a number for the whole pool.

        peer: the owner of the pool; None: this agent.
        """
        rows = np.array(
            [[span.address, span.block_bytes, span.device or 0, span.block_bytes, span.blocks]],
            dtype=np.uint64,
        )
        with self._ours("prepare descriptors"):
            handle = self._agent.prep_xfer_dlist(peer or _INITIATOR, rows, _memory(span))
        self._prepared.append(handle)
        return len(self._prepared) - 1

    def write_blocks(
        self, source: int, source_ids: Sequence[int], target: int, target_ids: Sequence[int],
        note: bytes,
    ) -> int:  # fmt: skip
        """Post a write of whole blocks between prepared pools. Returns its number for `done`.

        source, target: numbers from `prepare`. source_ids, target_ids: block ids in those pools.
        The peer receives `note` after the bytes have arrived.
        """
        return self._post_blocks("WRITE", source, source_ids, target, target_ids, note)

    def read_blocks(
        self, target: int, target_ids: Sequence[int], source: int, source_ids: Sequence[int]
    ) -> int:
        """Post a read of whole blocks of the peer's pool. Returns its number for `done`.

        The peer receives no notification.
        """
        return self._post_blocks("READ", target, target_ids, source, source_ids, b"")

    def write_parts(self, source: Parts, target: Parts, peer: str, note: bytes) -> int:
        """Post a write of runs of bytes in registered regions. Returns its number for `done`.

        The peer receives `note` after the bytes have arrived.
        """
        return self._post_parts("WRITE", source, target, peer, note)

    def read_parts(self, target: Parts, source: Parts, peer: str) -> int:
        """Post a read of runs of the peer's bytes. Returns its number for `done`.

        The peer receives no notification.
        """
        return self._post_parts("READ", target, source, peer, b"")

    def done(self, post: int) -> bool:
        """Make progress, and return True when the write or read has ended.

        Call it until it returns True or raises; the number is invalid afterwards.
        """
        handle = self._posts[post]
        with self._ours("finish a transfer"):
            state = self._agent.check_xfer_state(handle)
            if state == "PROC":
                return False
            del self._posts[post]
            handle.release()
        if state != "DONE":
            raise ChannelError(f"nixl agent {self.name} could not finish a transfer: {state}")
        return True

    def notes(self) -> list[bytes]:
        """Make progress, and return the notes of peers' writes since the last call."""
        with self._ours("read notifications"):
            return [note for notes in self._agent.get_new_notifs().values() for note in notes]

    def close(self) -> None:
        """Destroy the agent with its sockets and queues. Takes 0.1 to 0.2 s.

        It reads and writes nothing afterwards, whatever state its peer is in.
        """
        self._posts.clear()
        self._prepared.clear()
        self._agent = None  # NIXL's own destructor: the binding has no other way

    def _start(self, make: Callable[[], Any]) -> Any:
        """Make the agent, in at most ATTEMPTS attempts.

        UCX lists the network devices and then queries each; it fails where one disappears between.
        """
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(*self._errors):
                return make()
        return make()

    def _post_blocks(
        self, way: str, ours: int, our_ids: Sequence[int], theirs: int, their_ids: Sequence[int],
        note: bytes,
    ) -> int:  # fmt: skip
        with self._ours("post a transfer"):
            handle = self._agent.make_prepped_xfer(
                way,
                self._prepared[ours],
                np.array(our_ids, dtype=np.int32),
                self._prepared[theirs],
                np.array(their_ids, dtype=np.int32),
                note,
            )
            self._agent.transfer(handle)
        return self._posted(handle)

    def _post_parts(self, way: str, ours: Parts, theirs: Parts, peer: str, note: bytes) -> int:
        with self._ours("post a transfer"):
            local = self._agent.get_xfer_descs(ours, self._memory)
            remote = self._agent.get_xfer_descs(theirs, self._memory)
            handle = self._agent.initialize_xfer(way, local, remote, peer, note)
            self._agent.transfer(handle)
        return self._posted(handle)

    def _posted(self, handle: Any) -> int:
        number = next(self._numbers)
        self._posts[number] = handle
        return number

    @contextlib.contextmanager
    def _ours(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise ChannelError(f"nixl agent {self.name} could not {what}: {error}") from error


def check_installed() -> None:
    """Raise ChannelError where NIXL cannot be imported."""
    try:
        import nixl._api  # noqa: F401  it is optional, and takes a while
    except ImportError as error:
        raise ChannelError(
            f"nixl cannot be imported ({error}): install it, or use --channel grpc"
        ) from error


def _memory(span: Span) -> str:
    return "DRAM" if span.device is None else "VRAM"
