"""64-bit hashes that both sides of a hand-off make of the same request."""

from array import array
from collections.abc import Iterable

import xxhash

from baton.proto import common_pb2


def prompt_hash(token_ids: Iterable[int]) -> int:
    """Of the tokens whose state moves, as little-endian uint32."""
    return xxhash.xxh3_64_intdigest(array("I", token_ids).tobytes())


def sampling_hash(sampling: common_pb2.SamplingParams) -> int:
    """Of the message that both sides hold: protobuf's own bytes, in field order."""
    return xxhash.xxh3_64_intdigest(sampling.SerializeToString(deterministic=True))
