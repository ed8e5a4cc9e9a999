"""The bytes of the gRPC channel: one opening frame, then one frame a segment, then one reply.

All integers are little-endian.

opening  magic "BTN1", 4 zero bytes, ticket u64, generation u64, prompt hash u64, sampling hash u64
segment  kind u8, verified u8, first layer u16, end layer u16 (0 and 0: all of them), 2 zero bytes,
         start u64, end u64, checksum u64; then the payload
reply    outcome u8 (0: all is well), 7 zero bytes, segments u64, state bytes u64, KV bytes u64;
         then what was wrong, in UTF-8, where outcome is not 0

The checksum is xxh3-64 over the header before it and the payload; 0 where verified is 0.
"""

import struct
from collections.abc import Sequence

import xxhash

from baton.transfer.errors import ChecksumError, FrameError, TicketError, TransferError
from baton.transfer.segments import Kind, Segment
from baton.transfer.tickets import Claim, Received

MAGIC = b"BTN1"
_OPENING = struct.Struct("<4s4xQQQQ")
_PREFIX = struct.Struct("<BBHH2xQQ")
_CHECKSUM = struct.Struct("<Q")
_REPLY = struct.Struct("<B7xQQQ")
_OUTCOMES: tuple[type[TransferError], ...] = (ChecksumError, TicketError, FrameError)
HEADER_BYTES = _PREFIX.size + _CHECKSUM.size


def encode_opening(claim: Claim) -> bytes:
    return _OPENING.pack(
        MAGIC, claim.ticket_id, claim.generation, claim.prompt_hash, claim.sampling_hash
    )


def decode_opening(frame: bytes) -> Claim:
    if len(frame) != _OPENING.size or frame[:4] != MAGIC:
        raise FrameError(
            "the first message of a Write stream must open a ticket",
            expected=f"{_OPENING.size} bytes from {MAGIC!r}",
            actual=f"{len(frame)} bytes from {frame[:4]!r}",
        )
    return Claim(*_OPENING.unpack(frame)[1:])


def encode_segment(segment: Segment, payload: Sequence[memoryview], verify: bool) -> bytes:
    """One message. The join is the only copy made of the payload here."""
    layers = segment.layers or (0, 0)
    prefix = _PREFIX.pack(segment.kind, verify, *layers, segment.start, segment.end)
    checksum = 0
    if verify:
        digest = xxhash.xxh3_64(prefix)
        for part in payload:
            digest.update(part)
        checksum = digest.intdigest()
    return b"".join((prefix, _CHECKSUM.pack(checksum), *payload))


def decode_segment(frame: bytes) -> tuple[Segment, memoryview]:
    """The segment and its payload, a view into `frame`.

    Raises FrameError, or ChecksumError that names the segment.
    """
    if len(frame) < HEADER_BYTES:
        raise FrameError(
            "a segment's frame is cut short",
            expected=f"at least {HEADER_BYTES} bytes",
            actual=str(len(frame)),
        )
    kind, verified, first, last, start, end = _PREFIX.unpack_from(frame)
    (checksum,) = _CHECKSUM.unpack_from(frame, _PREFIX.size)
    if kind not in tuple(Kind) or verified not in (0, 1):
        raise FrameError("a segment's header makes no sense", "kind 1 to 3", f"kind {kind}")
    layers = (first, last) if first or last else None
    segment, payload = Segment(Kind(kind), start, end, layers), memoryview(frame)[HEADER_BYTES:]
    if verified:
        digest = xxhash.xxh3_64(frame[: _PREFIX.size])
        digest.update(payload)
        if digest.intdigest() != checksum:
            raise ChecksumError(
                f"the bytes of {segment} are not what was sent",
                expected=f"{checksum:016x}",
                actual=f"{digest.intdigest():016x}",
            )
    return segment, payload


def encode_reply(received: Received) -> bytes:
    return _REPLY.pack(0, received.segments, received.bytes_state, received.bytes_kv)


def encode_refusal(error: TransferError) -> bytes:
    kind = next(
        i for i, kind in enumerate((*_OUTCOMES, TransferError), 1) if isinstance(error, kind)
    )
    return _REPLY.pack(kind, 0, 0, 0) + describe(error).encode()


def decode_reply(frame: bytes) -> Received:
    """Raises what the receiver raised."""
    if len(frame) < _REPLY.size:
        raise FrameError("the reply to a Write stream is cut short", str(_REPLY.size), "")
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
