"""API keys: their file, which holds SHA-256 digests only, and the requests that each may send.

A key is 256 random bits, so its plain digest cannot be searched for; a slow hash is not needed.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Any

from baton.api.backend import MAX_PRIORITY
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, ConfigError
from baton.rpc.file_watcher import FileWatcher

PREFIX = "baton-"
_CAPS = (
    "requests_per_minute", "tokens_per_minute", "concurrent_requests", "max_n", "max_priority",
    "share",
)  # fmt: skip
DEFAULT_SHARE = 1
_FIELDS = {"name", "sha256", "scopes", *_CAPS}


class KeyScope(StrEnum):
    """A group of endpoints that a key may open. No scope contains another."""

    INFER = "infer"  # answers and models
    METRICS = "metrics"  # metrics, scrape targets and the state of the cluster
    ADMIN = "admin"  # aborts and flushes


@dataclass(frozen=True)
class Key:
    """One entry of the file."""

    name: str
    sha256: str = field(repr=False)  # of the key's text, in hexadecimal
    scopes: frozenset[KeyScope]
    # Caps of scope infer; None: no cap.
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers
    concurrent_requests: int | None = None  # answers that have not ended
    max_n: int | None = None  # answers to one prompt
    max_priority: int | None = None
    share: int | None = None  # of the tokens where requests wait; None: DEFAULT_SHARE

    @property
    def caps(self) -> dict[str, int]:
        """Return the caps that the key has, and its share, by name."""
        found = {name: getattr(self, name) for name in _CAPS}
        return {name: value for name, value in found.items() if value is not None}


def new_key() -> str:
    """Return a new key's text."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read a file of keys. Raises ConfigError, which says what is wrong with it."""
    try:
        found = json.loads(path.read_text())
        keys = tuple(_key_from(entry) for entry in found["keys"])
    except OSError as err:
        raise ConfigError(f"cannot read the API keys: {err}") from err
    except (ValueError, KeyError, TypeError) as err:
        raise ConfigError(
            f"{path} is no file of API keys ({type(err).__name__}: {err}); `baton keys add` writes "
            "one"
        ) from err
    names = [key.name for key in keys]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path} has two API keys of one name; remove one of them")
    return keys


def write_keys(path: Path, keys: Iterable[Key]) -> None:
    """Replace the file at once by one that only its owner can read. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"keys": [_entry(key) for key in keys]}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


class Keyring:
    """The keys of a running server. It follows changes of their file."""

    def __init__(
        self, path: Path, more: Sequence[Key] = (), clock: Callable[[], float] = monotonic
    ) -> None:
        """more: keys that are in no file. Raises ConfigError as `read_keys` does."""
        self._keys = FileWatcher(
            "the file of API keys", (path,), lambda: (*read_keys(path), *more), clock
        )
        self._counted: tuple[Key, ...] = ()  # the keys of `_shares`
        self._shares: dict[str, int] = {}

    def admit(self, text: str | None, *scopes: KeyScope) -> Key:
        """Return the key with this text, which has one of `scopes`.

        Raises UNAUTHENTICATED or PERMISSION_DENIED.
        """
        key = self.authenticate(text)
        if not key.scopes.intersection(scopes):
            wanted = " or ".join(scope.value for scope in scopes)
            raise ApiError(
                ErrorCode.PERMISSION_DENIED,
                f"the API key {key.name!r} lacks the scope {wanted}",
                expected=wanted,
                actual=", ".join(sorted(key.scopes)),
            )
        return key

    def authenticate(self, text: str | None) -> Key:
        """Return the key with this text. Raises UNAUTHENTICATED."""
        key = None if text is None else self._find(text)
        if key is None:
            problem = "there is no API key" if text is None else "the API key is not known"
            raise ApiError(
                ErrorCode.UNAUTHENTICATED,
                f"{problem}; send the header `Authorization: Bearer KEY` or `x-api-key: KEY`",
            )
        return key

    def share_of(self, name: str | None) -> float:
        """Return the share of the key of this name; the default for one that is not known."""
        keys = self._keys.get()
        if keys is not self._counted:
            self._counted = keys
            self._shares = {key.name: key.share or DEFAULT_SHARE for key in keys}
        return DEFAULT_SHARE if name is None else self._shares.get(name, DEFAULT_SHARE)

    def _find(self, text: str) -> Key | None:
        """Compare with each key in constant time, so that the time tells nothing about any."""
        given, found = digest_of(text), None
        for key in self._keys.get():
            if hmac.compare_digest(given, key.sha256):
                found = key
        return found


def _key_from(entry: dict[str, Any]) -> Key:
    if unknown := set(entry) - _FIELDS:
        raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
    name, digest = entry["name"], entry["sha256"]
    if not isinstance(name, str) or not name:
        raise ValueError("a name must be text")
    if not isinstance(digest, str) or len(bytes.fromhex(digest)) != 32:
        raise ValueError(f"sha256 of {name!r} must have 64 hexadecimal digits")
    caps = {cap: entry[cap] for cap in _CAPS if entry.get(cap) is not None}
    for cap, value in caps.items():
        least = -MAX_PRIORITY if cap == "max_priority" else 1
        if type(value) is not int or value < least:
            raise ValueError(f"{cap} of {name!r} must be a whole number, at least {least}")
    return Key(name, digest.lower(), frozenset(map(KeyScope, entry["scopes"])), **caps)


def _entry(key: Key) -> dict[str, object]:
    return {
        "name": key.name,
        "sha256": key.sha256,
        "scopes": sorted(key.scopes),
        **key.caps,
    }
