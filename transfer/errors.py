"""What can go wrong between two engines.

TransferError
├── FingerprintError  two workers do not lay their memory out alike
├── MoveError         a hand-off was asked to make a move that its table does not have: our fault
├── TicketError       an unknown ticket, another generation, or one that is no longer open
├── FrameError        bytes that are no frame, or that lie outside their ticket
├── ChecksumError     a segment's bytes are not what was sent
└── ChannelError      the peer was lost, or did not answer in time
"""


class TransferError(Exception):
    """Base of this room's errors. `expected` and `actual` are for the peer's `Error` message."""

    def __init__(self, message: str, expected: str = "", actual: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class FingerprintError(TransferError):
    """Two workers do not lay their memory out alike: names every field that differs."""


class MoveError(TransferError):
    """A hand-off was asked to make a move that its table does not have."""


class TicketError(TransferError):
    """The ticket is unknown, of another generation, or no longer open. No byte was written."""


class FrameError(TransferError):
    """Bytes that are no frame, or that lie outside their ticket. No byte was written."""


class ChecksumError(TransferError):
    """A segment's bytes are not what was sent. No byte of it was written."""


class ChannelError(TransferError):
    """The peer was lost, or did not answer in time."""
