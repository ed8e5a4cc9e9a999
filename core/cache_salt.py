"""Cache salts: the names of the parts that prefix caches are divided into."""

from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b

SALT_BYTES = 16
"""The length of a salt, in bytes."""

KEY_PART_BYTES = 8
"""The length of the beginning that all salts of one API key have in common."""

SHARED = b""
"""The salt of requests that name none: they share one part."""


class CacheScope(StrEnum):
    """The requests that share cached prefixes."""

    SHARED = "shared"  # everybody, but for requests with a salt
    KEY = "key"  # the requests of one API key; among these, a salt divides further


def make_salt(*parts: str | bytes) -> bytes:
    """Return the digest that stands for `parts` inside the cluster; SHARED for no part.

    A client's own text leaves the API as this digest alone. Each part is hashed with its length, so
    that different parts never make the same input.
    """
    if not parts:
        return SHARED
    digest = blake2b(digest_size=SALT_BYTES, person=b"baton-cache-salt")
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def key_part(owner: str) -> bytes:
    """Return the beginning of the salts of an API key, by its name: KEY_PART_BYTES."""
    return make_salt(owner)[:KEY_PART_BYTES]


def key_salt(owner: str, salt: bytes) -> bytes:
    """Return the salt of an API key's requests, which `salt` divides further."""
    return key_part(owner) + make_salt(owner, salt)[KEY_PART_BYTES:]


@lru_cache(maxsize=1024)  # most requests have one of few
def text_scope(owner: str | None, salt: bytes) -> bytes:
    """Return the name of the requests that may learn of each other's texts.

    owner: the name of their API key; None: no keys are asked for. Others of the same salt may share
    cached prefixes, but whether a text is known is told to nobody else.
    """
    return make_salt(owner or "", salt)


def is_salt(salt: bytes) -> bool:
    """Return True for SHARED and for any digest of `make_salt`."""
    return len(salt) in (0, SALT_BYTES)
