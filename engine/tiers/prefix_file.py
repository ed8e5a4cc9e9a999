"""One file: the state after a prefix, and pages of its KV.

    magic | digest of each block | MAC of all before and of the file's name | blocks

A block is the state's slot, or one page. A reader checks the MAC, and then each block that it reads
by its digest. A file appears under its name once all of it is on the disk.
"""

import hmac
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError
from baton.engine.tiers.copy_thread import Copy
from baton.engine.tiers.file_names import MAC_BYTES

_MAGIC = b"batonkv1"
_DIGEST_BYTES = 32
DRAFT = ".baton-draft-"
"""The beginning of the names of files that are not whole yet."""
Mac = Callable[[bytes], bytes]
"""The signature of a header, MAC_BYTES."""


class DamagedFileError(BatonError):
    """A file that is not what was written under its name."""

    code = ErrorCode.DATA_LOSS


def file_bytes(blocks: Sequence[int]) -> int:
    """Return the size of a file with blocks of these sizes."""
    return _header_bytes(len(blocks)) + sum(blocks)


def write_file(path: Path, blocks: Sequence[memoryview], mac: Mac, copy: Copy) -> bool:
    """Write a file, in a folder that is made where it is not there. False, and no file, where
    `copy` was told to stop. Raises OSError; then there is no file either.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{DRAFT}{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.seek(_header_bytes(len(blocks)))
            header = bytearray(_MAGIC)
            for block in blocks:
                if copy.stopping:
                    return False
                header += digest_of(block)
                file.write(block)
            file.seek(0)
            file.write(header + mac(bytes(header)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
    _sync_folder(path.parent)
    return True


def read_file(
    path: Path,
    sizes: Sequence[int],
    wanted: Mapping[int, memoryview],
    mac: Mac,
    copy: Copy,
) -> bool:
    """Read blocks into memory, by their numbers. False where `copy` was told to stop.

    sizes: of all blocks of the file. Raises DamagedFileError where any byte that matters is not
    what was written, and OSError.
    """
    with path.open("rb", buffering=0) as file:
        given, expected = os.fstat(file.fileno()).st_size, file_bytes(sizes)
        if given != expected:
            raise DamagedFileError(f"{path} has {given} bytes, expected {expected}")
        header = file.read(_header_bytes(len(sizes)))
        signed, signature = header[:-MAC_BYTES], header[-MAC_BYTES:]
        if not hmac.compare_digest(mac(signed), signature):
            raise DamagedFileError(f"the header of {path} is not signed by this cluster's key")
        at = len(header)
        for number, size in enumerate(sizes):
            if number in wanted:
                if copy.stopping:
                    return False
                _read_block(file.fileno(), at, wanted[number])
                first = len(_MAGIC) + number * _DIGEST_BYTES
                if digest_of(wanted[number]) != signed[first : first + _DIGEST_BYTES]:
                    raise DamagedFileError(f"block {number} of {path} has other bytes than written")
            at += size
    return True


def _read_block(descriptor: int, at: int, target: memoryview) -> None:
    while target:
        count = os.preadv(descriptor, [target], at)
        if not count:
            raise DamagedFileError("a file has become shorter while it was read")
        target, at = target[count:], at + count


def _header_bytes(blocks: int) -> int:
    return len(_MAGIC) + blocks * _DIGEST_BYTES + MAC_BYTES


def digest_of(block: memoryview) -> bytes:
    """Return the digest of a block. CPUs have instructions for SHA-256: 1.8 GB/s a core, and 0.8 by
    BLAKE2b."""
    return sha256(block).digest()


def _sync_folder(folder: Path) -> None:
    """Let the names of new files survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
