"""The secret by which files of prefixes are named and signed."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from baton.core.errors import ConfigError

_BYTES = 32


def state_key(path: Path) -> bytes:
    """Return the key in the file at `path`, which is made where there is none.

    Several processes may ask at once: all get the first one's. Raises ConfigError for a file that
    others may read, that holds something else, or that cannot be made.
    """
    try:
        if not path.exists():
            _make(path)
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii")
        key = bytes.fromhex(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"state_key_file {path} cannot be used: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"state_key_file {path} has the mode {stat.S_IMODE(mode):o}: others may read the key. "
            "Make it 600"
        )
    if len(key) != _BYTES:
        raise ConfigError(
            f"state_key_file {path} must hold {2 * _BYTES} hexadecimal digits; got {len(text)} "
            "characters. Name a file that does not exist, and it is made"
        )
    return key


def _make(path: Path) -> None:
    """Make a key in a file that appears whole, unless another process was first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
