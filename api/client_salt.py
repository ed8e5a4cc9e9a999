"""The salt that a client names, to keep its cached prefixes apart."""

from collections.abc import Mapping
from dataclasses import replace

from baton.api.backend import GenerateRequest
from baton.api.errors import invalid
from baton.core.cache_salt import CacheScope, make_salt

MAX_SALT_CHARS = 1024


def in_scope(request: GenerateRequest, scope: CacheScope) -> GenerateRequest:
    """Return the request with the salt that engines are given."""
    if scope is CacheScope.SHARED:
        return request
    return replace(request, cache_salt=make_salt(request.owner or "", request.cache_salt))


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
