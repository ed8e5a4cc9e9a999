"""The salt that a client names, to keep its cached prefixes apart."""

from collections.abc import Mapping
from dataclasses import replace

from baton.api.backend import CachePart, GenerateRequest
from baton.api.errors import invalid
from baton.core.cache_salt import CacheScope, key_part, key_salt, make_salt

MAX_SALT_CHARS = 1024


def in_scope(request: GenerateRequest, scope: CacheScope) -> GenerateRequest:
    """Return the request with the salt that engines are given."""
    if scope is CacheScope.SHARED:
        return request
    return replace(request, cache_salt=key_salt(request.owner or "", request.cache_salt))


def salts_of(part: CachePart | None, scope: CacheScope) -> bytes:
    """Return the beginning of the salts of a part of the caches; b"" for all. Raises
    INVALID_REQUEST for a part that the scope does not have.
    """
    if part is None:
        return b""
    if scope is CacheScope.SHARED:
        if part.owner is not None:
            raise invalid(
                "api_key",
                "this server's cache scope is shared, so prefixes are not kept apart by API key; "
                "name a cache_salt alone, or nothing to remove all",
            )
        return part.salt
    if part.owner is None:
        raise invalid(
            "api_key",
            "this server's cache scope is key, so a cache_salt divides the prefixes of one API "
            "key; expected that key's name beside it",
        )
    return key_salt(part.owner, part.salt) if part.salt else key_part(part.owner)


def client_salt(given: Mapping[str, str | None]) -> bytes:
    """Return the digest of the salts that a request names, SHARED if none is given.

    given: each field that names one, in a fixed order. Raises INVALID_REQUEST that names the field.
    No error repeats a salt: whoever knows it can ask what it has cached.
    """
    for name, text in given.items():
        if text is not None and not 1 <= len(text) <= MAX_SALT_CHARS:
            raise invalid(
                name,
                f"{name} has {len(text)} characters; expected 1 to {MAX_SALT_CHARS}, best 32 or "
                "more random ones, or leave it out",
                expected=f"1 to {MAX_SALT_CHARS} characters",
                actual=len(text),
            )
    return make_salt(*[text for text in given.values() if text is not None])
