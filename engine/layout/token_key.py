"""Token ids as bytes: the keys of the prefix cache."""

from array import array
from collections.abc import Sequence

TOKEN_BYTES = 4


def token_key(tokens: Sequence[int]) -> bytes:
    """Return token ids as int32 bytes, so that runs of them are compared by one memcmp."""
    return array("i", tokens).tobytes()
