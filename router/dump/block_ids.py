"""Numbers for the blocks of prompts: equal beginnings have equal numbers, and say nothing else."""

import hashlib
import secrets
from array import array
from collections.abc import Sequence

BLOCK = 64
"""Tokens in a block. The usual page: what two prompts share is known as finely as it is cached."""


class BlockIds:
    """Numbers in the order of first sight, for the chain of a prompt's blocks up to each block.

    The digests are keyed with a key that is never written, and only numbers leave this object: a
    dump cannot be searched for a guessed prompt.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._numbers: dict[bytes, int] = {}

    def of(self, prompt_ids: Sequence[int], salt: bytes = b"") -> tuple[int, ...]:
        """Return the number of each block of a prompt; the last block may be shorter.

        salt: prompts of different salts share no number.
        """
        packed = memoryview(array("i", prompt_ids)).cast("B")
        size = BLOCK * array("i").itemsize
        chain, found = salt, []
        for start in range(0, len(packed), size):
            block = packed[start : start + size]
            chain = self._digest(chain + bytes(block))
            found.append(self._numbers.setdefault(chain, len(self._numbers)))
        return tuple(found)

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=16, key=self._key).digest()
