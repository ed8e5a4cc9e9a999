"""The wire format of the gRPC channel: one opening frame, one frame for each segment, one reply.

Small writes go whole, several in one message, each behind its length: an opening, and each segment
behind its length. So do the replies to them. The notification of each NIXL write is an opening, and
a segment without payload.

All integers are little-endian.

opening  magic "BTN1", 4 zero bytes, ticket u64, generation u64, prompt hash u64, sampling hash u64
segment  kind u8, verified u8, first layer u16, end layer u16 (0 and 0: all of them), 2 zero bytes,
         start u64, end u64, checksum u64; then the payload
length   u64, of what stands behind it
reply    outcome u8 (0: success), 7 zero bytes, segments u64, state bytes u64, KV bytes u64;
         then the error message in UTF-8 where outcome is not 0

The checksum is xxh3-64 over the header before it and the payload; 0 where verified is 0.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from baton.core.handoff_ids import TicketId
from baton.transfer.errors import ChecksumError, FrameError, TicketError, TransferError
from baton.transfer.memory.segments import Kind, Segment
from baton.transfer.tickets import Claim, Received

MAGIC = b"BTN1"
_OPENING = struct.Struct("<4s4xQQQQ")
_PREFIX = struct.Struct("<BBHH2xQQ")
_CHECKSUM = struct.Struct("<Q")
_LENGTH = struct.Struct("<Q")
_REPLY = struct.Struct("<B7xQQQ")
_OUTCOMES: tuple[type[TransferError], ...] = (ChecksumError, TicketError, FrameError)
_KINDS = {kind.value: kind for kind in Kind}
HEADER_BYTES = _PREFIX.size + _CHECKSUM.size
PROBE = b"BTNP"
"""A note without a segment: the writer tests the connection."""


def encode_opening(claim: Claim) -> bytes:
    return _OPENING.pack(MAGIC, *claim.ticket, claim.prompt_hash, claim.sampling_hash)


def decode_opening(frame: bytes) -> Claim:
    if len(frame) != _OPENING.size or frame[:4] != MAGIC:
        raise FrameError(
            "the first message of a Write stream must open a ticket",
            expected=f"{_OPENING.size} bytes from {MAGIC!r}",
            actual=f"{len(frame)} bytes from {frame[:4]!r}",
        )
    _, number, generation, *hashes = _OPENING.unpack(frame)
    return Claim(TicketId(number, generation), *hashes)


@dataclass(frozen=True)
class Header:
    """The header of a segment: sent before its payload, or in the note of a one-sided write."""

    segment: Segment
    checksum: int | None  # None: not verified

    def check(self, payload: Sequence[memoryview]) -> None:
        """Raise ChecksumError, which names the segment, unless `payload` has the checksum."""
        if self.checksum is None:
            return
        actual = checksum_of(self.segment, payload)
        if actual != self.checksum:
            raise ChecksumError(
                f"the bytes of {self.segment} are not what was sent",
                expected=f"{self.checksum:016x}",
                actual=f"{actual:016x}",
            )


def checksum_of(segment: Segment, payload: Sequence[memoryview]) -> int:
    """Return the checksum of a payload and its place, so that a wrong place is an error too."""
    digest = xxhash.xxh3_64(_prefix(segment, True))
    for part in payload:
        digest.update(part)
    return digest.intdigest()


def encode_header(header: Header) -> bytes:
    verified = header.checksum is not None
    return _prefix(header.segment, verified) + _CHECKSUM.pack(header.checksum or 0)


def decode_header(frame: bytes | memoryview) -> Header:
    """Read the header at the start of `frame`. Raises FrameError."""
    if len(frame) < HEADER_BYTES:
        raise FrameError(
            "a segment's frame is too short",
            expected=f"at least {HEADER_BYTES} bytes",
            actual=str(len(frame)),
        )
    kind, verified, first, last, start, end = _PREFIX.unpack_from(frame)
    (checksum,) = _CHECKSUM.unpack_from(frame, _PREFIX.size)
    if kind not in _KINDS or verified not in (0, 1):
        raise FrameError("a segment's header is invalid", "kind 1 to 3", f"kind {kind}")
    layers = (first, last) if first or last else None
    return Header(Segment(_KINDS[kind], start, end, layers), checksum if verified else None)


def parts_of_segment(
    segment: Segment, payload: Sequence[memoryview], checked: Sequence[memoryview] | None
) -> list[bytes | memoryview]:
    """Return the parts of a segment's frame. Joining them is the only copy of the payload.

    checked: the bytes whose checksum it carries, see `Memory.checked`; None: it carries none.
    """
    header = Header(segment, None if checked is None else checksum_of(segment, checked))
    return [encode_header(header), *payload]


def encode_segment(
    segment: Segment, payload: Sequence[memoryview], checked: Sequence[memoryview] | None
) -> bytes:
    """Return one message; see `parts_of_segment`."""
    return b"".join(parts_of_segment(segment, payload, checked))


def parts_of_whole(
    claim: Claim, segments: Iterable[Sequence[bytes | memoryview]]
) -> list[bytes | memoryview]:
    """Return the parts of a write that goes whole. segments: each in the parts of its frame."""
    return [encode_opening(claim), *_behind_lengths(segments)]


def decode_whole(frame: memoryview) -> tuple[Claim, list[memoryview]]:
    """Return the claim, and the frame of each segment, a view into `frame`. Raises FrameError."""
    claim = decode_opening(bytes(frame[: _OPENING.size]))
    return claim, decode_several(frame[_OPENING.size :])


def encode_several(frames: Iterable[Sequence[bytes | memoryview]]) -> bytes:
    """Return one message of several frames, each given in parts."""
    return b"".join(_behind_lengths(frames))


def decode_several(message: bytes | memoryview) -> list[memoryview]:
    """Return each frame of the message, a view into it. Raises FrameError."""
    whole, at, found = memoryview(message), 0, []
    while at < len(whole):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(whole, at)[0] if begin <= len(whole) else begin
        if at > len(whole):
            raise FrameError("a message is cut short", f"at least {at} bytes", str(len(whole)))
        found.append(whole[begin:at])
    return found


def decode_segment(frame: bytes | memoryview) -> tuple[Segment, memoryview]:
    """Return the segment and its payload, a view into `frame`.

    Raises FrameError or ChecksumError.
    """
    header, payload = decode_header(frame), memoryview(frame)[HEADER_BYTES:]
    header.check([payload])
    return header.segment, payload


def encode_note(claim: Claim, header: Header) -> bytes:
    """Return the note of a one-sided write: the claim, and the place of the bytes."""
    return encode_opening(claim) + encode_header(header)


def decode_note(note: bytes) -> tuple[Claim, Header]:
    """Read what `encode_note` wrote. Raises FrameError."""
    return decode_opening(note[: _OPENING.size]), decode_header(note[_OPENING.size :])


def _behind_lengths(
    frames: Iterable[Sequence[bytes | memoryview]],
) -> Iterator[bytes | memoryview]:
    """Yield the parts of each frame behind its length."""
    for each in frames:
        yield _LENGTH.pack(sum(map(len, each)))
        yield from each


def _prefix(segment: Segment, verified: bool) -> bytes:
    layers = segment.layers or (0, 0)
    return _PREFIX.pack(segment.kind, verified, *layers, segment.start, segment.end)


def encode_reply(received: Received) -> bytes:
    return _REPLY.pack(0, received.segments, received.bytes_state, received.bytes_kv)


def encode_refusal(error: TransferError) -> bytes:
    kind = next(
        i for i, kind in enumerate((*_OUTCOMES, TransferError), 1) if isinstance(error, kind)
    )
    return _REPLY.pack(kind, 0, 0, 0) + describe(error).encode()


def decode_reply(frame: bytes) -> Received:
    """Return what the receiver counted. Raises the receiver's error if it sent one."""
    if len(frame) < _REPLY.size:
        raise FrameError("the reply to a Write stream is too short", str(_REPLY.size), "")
    outcome, *received = _REPLY.unpack_from(frame)
    if outcome:
        raise dict(enumerate(_OUTCOMES, 1)).get(outcome, TransferError)(
            frame[_REPLY.size :].decode(errors="replace")
        )
    return Received(*received)


def describe(error: TransferError) -> str:
    if not error.expected:
        return str(error)
    return f"{error} (expected {error.expected}; got {error.actual})"
