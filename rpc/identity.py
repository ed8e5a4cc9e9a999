"""The identity of a process in its cluster, as its certificate spells it."""

import re
from dataclasses import dataclass
from enum import StrEnum

from baton.core.errors import ConfigError

SUFFIX = "baton"
_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d{0,8})$")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class ProcessRole(StrEnum):
    """The part that a process has in its cluster. `rpc/access.py` says what each may call."""

    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    OPERATOR = "operator"  # whoever runs the cluster: audits, flushes, status


@dataclass(frozen=True)
class Identity:
    """A process's name, role and cluster. Two processes that run at once never share one.

    A restarted worker has the identity of the one that it replaces. Raises ConfigError for a name
    that no certificate can carry.
    """

    role: ProcessRole
    name: str  # a worker's worker_id; unique in its role and cluster
    cluster: str

    def __post_init__(self) -> None:
        check_label("the name of a process", self.name)
        check_label("the name of a cluster", self.cluster)

    @property
    def dns_name(self) -> str:
        """The name in the certificate that only this process has."""
        return f"{self.name}.{self.role}.{self.cluster}.{SUFFIX}"

    @property
    def dns_names(self) -> tuple[str, ...]:
        """All names in the certificate. Those who dial a router do not know which one answers."""
        if self.role is ProcessRole.ROUTER:
            return self.dns_name, any_router(self.cluster)
        return (self.dns_name,)

    @classmethod
    def parse(cls, dns_name: str) -> "Identity | None":
        """Return the identity that `dns_name` spells; None where it spells none."""
        labels = dns_name.split(".")
        if len(labels) != 4 or labels[3] != SUFFIX or labels[1] not in set(ProcessRole):
            return None
        if not (_LABEL.fullmatch(labels[0]) and _LABEL.fullmatch(labels[2])):
            return None
        return cls(ProcessRole(labels[1]), labels[0], labels[2])


def any_router(cluster: str) -> str:
    """Return the DNS name that every router of a cluster has in its certificate."""
    return f"{ProcessRole.ROUTER}.{cluster}.{SUFFIX}"


def identity_in(dns_names: list[str]) -> Identity | None:
    """Return the identity among a certificate's DNS names; None unless there is exactly one."""
    found = [identity for name in dns_names if (identity := Identity.parse(name)) is not None]
    return found[0] if len(found) == 1 else None


def number_in(name: str) -> int | None:
    """Return the number at a name's end: 3 for decode-3. None where there is none, or one of more
    than nine digits or with a zero before it.
    """
    found = _NUMBER.search(name)
    return None if found is None else int(found.group())


def check_label(what: str, text: str) -> None:
    """Raise ConfigError unless `text` can be one label of a DNS name."""
    if not _LABEL.fullmatch(text):
        raise ConfigError(
            f"{what} is {text!r}; expected 1 to 63 characters a-z, 0-9 and '-', the first and the "
            "last no '-', because certificates carry it as part of a DNS name"
        )
