"""The judges of a client's API key: the keys, their accounts, and who guesses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from baton.api.access.client_limits import ClientLimits
from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_accounts import KeyAccounts
from baton.api.access.key_guesses import KeyGuesses
from baton.api.access.keys import Key, Keyring


@dataclass(frozen=True)
class KeyGate:
    """The keys of one server, for its HTTP and gRPC ports."""

    keyring: Keyring
    accounts: KeyAccounts = field(default_factory=KeyAccounts)
    guesses: KeyGuesses = field(default_factory=KeyGuesses)

    @classmethod
    def open(
        cls,
        path: Path,
        more: Sequence[Key] = (),
        limits: ClientLimits | None = None,
        metrics: ClientMetrics | None = None,
        parts: int = 1,
    ) -> Self:
        """more: keys that are in no file. parts: servers among which their caps are divided.
        Raises ConfigError as `read_keys` does.
        """
        accounts = KeyAccounts(parts=parts)
        if metrics is not None:
            accounts = KeyAccounts(count=metrics.key_refused, parts=parts)
        return cls(Keyring(path, more), accounts, KeyGuesses(limits, metrics))
