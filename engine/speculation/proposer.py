"""The guess of the tokens that follow a request's newest one."""

from collections.abc import Sequence
from typing import Protocol


class Proposer(Protocol):
    """A source of draft tokens. Verification keeps those that plain decoding would have drawn, so a
    wrong guess costs time and never changes an answer.
    """

    def propose(self, serial: int, token_ids: Sequence[int], most: int) -> Sequence[int]:
        """Return at most `most` tokens that may follow `token_ids`; none where it has no guess.

        serial: the request's; never used twice. token_ids: its prompt and output.
        """
        ...

    def forget(self, serial: int) -> None:
        """Drop what is known of a request that has ended. Idempotent."""
        ...
