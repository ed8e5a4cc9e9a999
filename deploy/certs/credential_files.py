"""A process's certificate on its way to another host: the content of its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from baton.deploy.certs.authority import write_private
from baton.rpc.credentials import AUTHORITIES, CERT, KEY
from baton.rpc.revoked import REVOKED


@dataclass(frozen=True, repr=False)
class CredentialFiles:
    """The files of one process's folder, by name. They hold its private key."""

    content: Mapping[str, bytes]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the folder of a process. `revoked` may be missing there."""
        content = {name: (folder / name).read_bytes() for name in (CERT, KEY, AUTHORITIES)}
        if (folder / REVOKED).exists():
            content[REVOKED] = (folder / REVOKED).read_bytes()
        return cls(content)

    def write(self, folder: Path) -> None:
        """Write what is not there yet, each file readable by this user alone."""
        for name, content in self.content.items():
            path = folder / name
            if not path.exists() or path.read_bytes() != content:
                write_private(path, content)

    def __repr__(self) -> str:
        return f"CredentialFiles({', '.join(sorted(self.content))})"  # the key stands in no log
