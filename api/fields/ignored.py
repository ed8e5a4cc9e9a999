"""The parts of a request that were left out, which its reply names in `X-Baton-Ignored`."""

import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

IGNORED_HEADER = "x-baton-ignored"
_SCOPE = "baton.ignored"
_NAMED = 32
_CHARS = 64
_UNSAFE = re.compile(r"[^\w.\[\]$-]", re.ASCII)


def keep_ignored(scope: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Add names to those that an ASGI scope's reply will have."""
    found: dict[str, None] = scope.setdefault(_SCOPE, {})
    found.update(dict.fromkeys(names))


def ignored_in(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that were kept, in their order."""
    return tuple(scope.get(_SCOPE, ()))


def ignored_value(names: Iterable[str]) -> str:
    """Return the header's value. Clients make names up, so that only letters, digits, dots,
    hyphens, brackets and dollar signs of the first ones stay."""
    shown = [_UNSAFE.sub("?", name[:_CHARS]) for name in names]
    rest = [f"and-{len(shown) - _NAMED}-more"] if len(shown) > _NAMED else []
    return ", ".join(shown[:_NAMED] + rest)
