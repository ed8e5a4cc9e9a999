"""The name of a cached prefix."""

from dataclasses import dataclass, field

from baton.core.cache_salt import SHARED
from baton.engine.layout.token_key import token_key


@dataclass(frozen=True)
class SaltedPrefix:
    """Token ids, and the cache salt under which their state and KV are cached."""

    token_ids: tuple[int, ...]
    salt: bytes = field(default=SHARED, repr=False)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.token_ids)

    @property
    def key(self) -> bytes:
        """The tokens as the prefix cache's key."""
        return token_key(self.token_ids)

    def first(self, tokens: int) -> "SaltedPrefix":
        """Return the prefix of the first `tokens` tokens."""
        return SaltedPrefix(self.token_ids[:tokens], self.salt)
