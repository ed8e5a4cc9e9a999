"""Names and signatures of files that hold prefixes, keyed: without the secret a name tells nothing
of a prompt, and no file can be made that is taken for another's.
"""

import sys
from hashlib import blake2b

from baton.core.cache_salt import KEY_PART_BYTES, SHARED
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.sizing.plan import MemoryPlan

FORMAT = 1
"""Raise this when bytes of a slot, of a page or of a file mean something else than before."""
_NAME_BYTES = 16
MAC_BYTES = 32


class FileNames:
    """The names that one model's prefixes have under one secret."""

    def __init__(self, secret: bytes, identity: str, page_size: int) -> None:
        """identity: see `identity_of`. Prefixes of another one have other names and signatures."""
        self._secret = secret
        self._key = blake2b(identity.encode(), key=secret, digest_size=32).digest()
        self._page_bytes = page_size * TOKEN_BYTES

    def folder(self, salt: bytes = SHARED) -> str:
        """Return the name of a salt's folder, the same for all models."""
        return self._half(salt[:KEY_PART_BYTES], b"part") + self._half(salt, b"salt")

    def folders(self, salts: bytes) -> str:
        """Return the beginning of the names of the folders of salts that begin so: of all salts, of
        one API key's, or of one."""
        if len(salts) == KEY_PART_BYTES:
            return self._half(salts, b"part")
        return self.folder(salts) if salts else ""

    def _half(self, salt: bytes, person: bytes) -> str:
        size = _NAME_BYTES // 2
        return blake2b(salt, key=self._secret, digest_size=size, person=person).hexdigest()

    def along(self, key: bytes, salt: bytes) -> list[str]:
        """Return the names of the prefixes of 1, 2, … whole pages of `key` (see `token_key`)."""
        above = blake2b(salt, key=self._key, person=b"prefix").digest()
        names = []
        for end in range(self._page_bytes, len(key) + 1, self._page_bytes):
            page = key[end - self._page_bytes : end]
            above = blake2b(above + page, key=self._key, person=b"prefix").digest()
            names.append(above[:_NAME_BYTES].hex())
        return names

    def mac(self, name: str, header: bytes) -> bytes:
        """Return the signature of a header in the file of this name: MAC_BYTES."""
        digest = blake2b(key=self._key, digest_size=MAC_BYTES, person=b"file")
        digest.update(f"{name}\n".encode())
        digest.update(header)
        return digest.digest()


def identity_of(plan: MemoryPlan, weights: str) -> str:
    """Return what two engines must have in common to go on from each other's files.

    weights: see `weights_digest`.
    """
    config, model = plan.config, plan.model_config
    file = model.folder / "config.json"
    described = {
        "format": FORMAT,
        "family": model.family,
        "config": blake2b(file.read_bytes() if file.is_file() else b"").hexdigest(),
        "weights": weights,
        "weights_from": config.load_format,
        "weight_format": (config.weight_format, config.round_vocabulary),
        "dtype": config.dtype,
        "chunk": model.mamba_chunk_size,
        "mtp": (model.mtp, model.mtp_recycle),
        "slot": plan.slot_layout,
        "page": plan.page_layout,
        "ranks": config.tp,
        "acceptance": config.speculative_synthetic_acceptance,
        "byte_order": sys.byteorder,
    }
    return "\n".join(f"{name}: {value!r}" for name, value in described.items())
