"""API keys: their file, which holds SHA-256 digests only, and the requests that each may send.

A key is 256 random bits, so its plain digest cannot be searched for; a slow hash is not needed.
"""

import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, ConfigError

log = logging.getLogger(__name__)

PREFIX = "baton-"
RECHECK_S = 1.0
"""The least time between two looks at the file."""
_FIELDS = {"name", "sha256", "scopes", "requests_per_minute"}


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
    requests_per_minute: int | None = None  # of scope infer; None: no limit


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
        self, path: Path, more: Sequence[Key] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """more: keys that are in no file. Raises ConfigError as `read_keys` does."""
        self._path = path
        self._more = tuple(more)
        self._clock = clock
        self._looked = clock()
        self._seen = self._look()
        self._keys = (*read_keys(path), *self._more)
        self._arrivals: dict[str, tuple[float, float]] = {}  # by key's name: credit left, and when

    def admit(self, text: str | None, scope: KeyScope) -> Key:
        """Return the key with this text, and count a request of scope infer.

        Raises UNAUTHENTICATED, PERMISSION_DENIED, or OVERLOADED beyond the key's rate.
        """
        key = self.authenticate(text)
        if scope not in key.scopes:
            raise ApiError(
                ErrorCode.PERMISSION_DENIED,
                f"the API key {key.name!r} lacks the scope {scope.value}",
                expected=scope.value,
                actual=", ".join(sorted(key.scopes)),
            )
        if scope is KeyScope.INFER and key.requests_per_minute is not None:
            self._count(key, key.requests_per_minute)
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

    def _find(self, text: str) -> Key | None:
        """Compare with each key in constant time, so that the time tells nothing about any."""
        self._follow()
        given, found = digest_of(text), None
        for key in self._keys:
            if hmac.compare_digest(given, key.sha256):
                found = key
        return found

    def _follow(self) -> None:
        """Read the file again if it has changed. A broken one is logged and changes nothing."""
        now = self._clock()
        if now - self._looked < RECHECK_S:
            return
        self._looked = now
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._keys = (*read_keys(self._path), *self._more)
        except ConfigError as err:
            log.error("the API keys of before stay in force: %s", err)
        else:
            log.info("read %d API keys from %s", len(self._keys) - len(self._more), self._path)

    def _look(self) -> tuple[int, int, int] | None:
        """Return what differs after every write of the file; None if it is gone."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _count(self, key: Key, per_minute: int) -> None:
        """Take one from the key's credit, which fills up steadily to one minute's requests."""
        now = self._clock()
        credit, then = self._arrivals.get(key.name, (float(per_minute), now))
        credit = min(credit + (now - then) * per_minute / 60, float(per_minute))
        if credit < 1:
            raise ApiError(
                ErrorCode.OVERLOADED,
                f"the API key {key.name!r} may send {per_minute} requests a minute; send this one "
                "again later",
                expected=f"at most {per_minute} a minute",
                retry_after_s=(1 - credit) * 60 / per_minute,
            )
        self._arrivals[key.name] = credit - 1, now


def _key_from(entry: dict[str, Any]) -> Key:
    if unknown := set(entry) - _FIELDS:
        raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
    name, digest, rate = entry["name"], entry["sha256"], entry.get("requests_per_minute")
    if not isinstance(name, str) or not name:
        raise ValueError("a name must be text")
    if not isinstance(digest, str) or len(bytes.fromhex(digest)) != 32:
        raise ValueError(f"sha256 of {name!r} must have 64 hexadecimal digits")
    if rate is not None and (type(rate) is not int or rate < 1):
        raise ValueError(f"requests_per_minute of {name!r} must be a whole number above 0")
    return Key(name, digest.lower(), frozenset(map(KeyScope, entry["scopes"])), rate)


def _entry(key: Key) -> dict[str, object]:
    return {
        "name": key.name,
        "sha256": key.sha256,
        "scopes": sorted(key.scopes),
        "requests_per_minute": key.requests_per_minute,
    }
