"""The identity of a checkpoint's weights: a digest of every byte of every tensor.

Reading them all takes as long as loading them, so the digest is made once and kept, beside the
sizes, inodes and times of the files that it was made of: a file that has changed is read again.
"""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b, file_digest, sha256
from pathlib import Path

log = logging.getLogger(__name__)

_KEPT = ".baton-weights.json"
_DIGEST_BYTES = 16
Seen = list[list[str | int]]


def weights_digest(folder: Path, elsewhere: Path) -> str:
    """Return the digest of the weight files in `folder`.

    It is kept in that folder or, where that is read-only, in `elsewhere`. Raises OSError where a
    file cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    seen = [_seen(path) for path in files]
    name = blake2b(str(folder.resolve()).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    places = folder / _KEPT, elsewhere / f"weights-{name}.json"
    for place in places:
        if (kept := _kept(place, seen)) is not None:
            return kept
    if files:
        log.info("%s: every byte of its weights is read once, to know them again", folder)
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for path in files:
        with path.open("rb") as file:
            digest.update(file_digest(file, sha256).digest())
    if files:
        _keep(places, seen, digest.hexdigest())
    return digest.hexdigest()


def _seen(path: Path) -> list[str | int]:
    """Return what changes with a file. Nobody can set the time of its last change at will."""
    stat = path.stat()
    return [path.name, stat.st_size, stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _kept(place: Path, seen: Seen) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        entry = json.loads(place.read_text(encoding="utf-8"))
        if entry["files"] == seen and seen:
            return str(entry["digest"])
    return None


def _keep(places: Sequence[Path], seen: Seen, digest: str) -> None:
    """Keep the digest in the first of the places that can be written."""
    entry = json.dumps({"files": seen, "digest": digest})
    for place in places:
        draft = place.with_name(f"{place.name}.{os.getpid()}")
        try:
            draft.write_text(entry, encoding="utf-8")
            draft.replace(place)
        except OSError:
            with suppress(OSError):
                draft.unlink()
        else:
            return
    log.warning("the digest of the weights is kept nowhere: the next start reads them again")
