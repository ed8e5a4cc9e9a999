"""The interface of a channel, which moves bytes from one engine's pools into another's."""

from dataclasses import dataclass
from typing import ClassVar

from grpc import aio

from baton.proto.common_pb2 import WorkerIdentity
from baton.rpc.credentials import Credentials
from baton.transfer.channels.ends import ChannelReceiver, Lender, OnBytes, Reader, Sender
from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.channels.poller import Poller
from baton.transfer.channels.trusted_network import LOCAL, TrustedNetwork
from baton.transfer.memory.regions import Memory
from baton.transfer.tickets import TicketTable


@dataclass(frozen=True)
class Capabilities:
    """The abilities of one channel. Workers choose channels by these, never by name."""

    push: bool = False  # has sender and receiver ends: hand-offs
    pull: bool = False  # has reader and lender ends: prefixes are read where they lie
    one_sided: bool = False  # a sender writes into memory itself, also under a closed ticket
    in_process: bool = False  # joins engines of one process only
    through_host: bool = False  # bytes always pass the host's memory: a checksum costs little
    fallback: bool = False  # every worker serves it, whatever --channel says

    @property
    def fenced(self) -> bool:
        """True when a closed ticket's memory is free at once: the receiver itself, or a lock of
        its ticket, stands before every write."""
        return self.push and not self.one_sided


@dataclass(frozen=True)
class ChannelContext:
    """The parts of a worker that each of its channels uses."""

    worker: str  # worker id and incarnation: unique over workers and their restarts
    memory: Memory
    tickets: TicketTable  # what may be written into `memory`
    poller: Poller
    lease_s: float  # the longest that one step of a transfer may take
    verify: bool  # segments carry checksums
    count_sent: OnBytes
    count_received: OnBytes
    credentials: Credentials | None = None  # of this worker; None: the channel dials nobody
    hub: LocalHub | None = None  # where engines of this process meet; None: there is one engine
    network: TrustedNetwork = LOCAL


class Channel:
    """One way to move bytes between workers, as one worker has it.

    A subclass overrides the methods of the capabilities that it declares. The others raise
    NotImplementedError.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def __init__(self, context: ChannelContext) -> None:
        self.context = context

    @classmethod
    def check_settings(cls, network: TrustedNetwork) -> None:
        """Check the operator's settings, without loading anything.

        Raises ConfigError for settings that contradict each other or this machine, and ChannelError
        where they exclude this channel.
        """

    @classmethod
    def check_room(cls, ends: int) -> None:
        """Raise ChannelError where this machine has no room for as many ends of the channel."""

    @classmethod
    def check_usable(cls, network: TrustedNetwork) -> None:
        """Check the settings, and that this machine has what the channel needs.

        Raises ChannelError where it cannot be used here, and ConfigError as `check_settings` does.
        """

    @classmethod
    def maps_peers(cls) -> bool:
        """Return whether this process may write into other processes of this machine without their
        help, so that a teardown on their side does not stop it."""
        return False

    @classmethod
    def maps_namespaces(cls, *, on_device: bool) -> bool:
        """Return whether it may do so across pid namespaces too.

        on_device: the pools lie in a device's memory.
        """
        return False

    def add_to(self, server: aio.Server) -> None:
        """Add the channel's service, if it has one, to this worker's gRPC server."""

    async def open_receiver(self) -> ChannelReceiver:
        """Open the receiving end for one peer's writes. Raises ChannelError. Push."""
        raise self._undeclared("push")

    async def connect_sender(self, endpoint: bytes, peer: WorkerIdentity) -> Sender:
        """Connect to the ChannelReceiver of `peer` and try the way. Raises ChannelError. Push."""
        raise self._undeclared("push")

    async def connect_reader(self, endpoint: bytes) -> Reader:
        """Connect to a peer's Lender and try the way. Raises ChannelError. Pull."""
        raise self._undeclared("pull")

    def reads_alone(self, pid: int | None) -> bool:
        """Return whether a process reads here without the help of this one. Pull.

        pid: of the reader; None: it is not visible from here.
        """
        raise self._undeclared("pull")

    def open_lender(self) -> Lender:
        """Make the end from which peers read. Called once a worker. Pull."""
        raise self._undeclared("pull")

    def _undeclared(self, capability: str) -> NotImplementedError:
        return NotImplementedError(f"channel {self.name} has no {capability} ends")
