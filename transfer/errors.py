"""Errors between two engines; `core/errors.py` has the tree that these belong to."""

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError


class TransferError(BatonError):
    """The base of this room's errors."""


class MoveError(TransferError):
    """A hand-off was asked to make a move that its table does not have: a fault of ours."""


class TicketError(TransferError):
    """The ticket is unknown, of another generation, or no longer open. No byte was written."""

    code = ErrorCode.UNAVAILABLE


class FrameError(TransferError):
    """Bytes that are no frame, or that lie outside their ticket. No byte was written."""


class ChecksumError(TransferError):
    """A segment's bytes are not those that were sent. No byte of it was written."""

    code = ErrorCode.DATA_LOSS


class ChannelError(TransferError):
    """The peer was lost, or did not answer in time."""

    code = ErrorCode.UNAVAILABLE
