"""64-bit hashes that both sides of a hand-off make of the same request."""

from array import array
from collections.abc import Iterable

import xxhash

from baton.core.cache_salt import SHARED
from baton.proto import common_pb2


def prompt_hash(token_ids: Iterable[int], cache_salt: bytes = SHARED) -> int:
    """Hash the cache salt and the tokens whose state moves, these as little-endian uint32."""
    return xxhash.xxh3_64_intdigest(cache_salt + array("I", token_ids).tobytes())


def sampling_hash(sampling: common_pb2.SamplingParams) -> int:
    """Hash the sampling parameters as protobuf serialises them, in field order."""
    return xxhash.xxh3_64_intdigest(sampling.SerializeToString(deterministic=True))
