"""The CPU time of a router's event loop by messages, tokens and requests.

A rank sends one message a step, however many tokens it has. A cost a token alone therefore holds
for one number of tokens a message only: that of the round in which it was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

MOST_BUSY = 0.7
"""The share of a core up to which a router is planned: beyond, tokens wait for each other."""


@dataclass(frozen=True)
class Counted:
    """One round through one router: its messages, tokens and requests, and the loop's CPU time."""

    messages: int
    tokens: int
    requests: int
    loop_us: float


@dataclass(frozen=True)
class RouterCost:
    """Microseconds of a router's event loop."""

    message_us: float
    token_us: float

    @classmethod
    def fitted(cls, rounds: Sequence[Counted]) -> Self:
        """Return the costs that fit the rounds' times a token best; none is negative.

        rounds: with at least two different numbers of tokens a message.
        """
        a = np.array([[each.messages / each.tokens, 1.0] for each in rounds])
        b = np.array([each.loop_us / each.tokens for each in rounds])
        message_us, token_us = np.linalg.lstsq(a, b, rcond=None)[0]
        if message_us < 0:
            return cls(0.0, float(b.mean()))
        if token_us < 0:
            return cls(float((a[:, 0] @ b) / (a[:, 0] @ a[:, 0])), 0.0)
        return cls(float(message_us), float(token_us))

    def of(self, messages: float, tokens: float) -> float:
        """Return the microseconds of so many messages and tokens."""
        return messages * self.message_us + tokens * self.token_us

    def request_us(self, mix: Counted) -> float:
        """Return what each request of a round cost beyond its messages and tokens."""
        return max(0.0, mix.loop_us - self.of(mix.messages, mix.tokens)) / mix.requests

    def routers(
        self, ranks: int, rank_tok_s: float, step_s: float, request_us: float, answer: float
    ) -> float:
        """Return the routers for `ranks`, divided among them, none busier than `MOST_BUSY`.

        rank_tok_s: tokens a second of each rank. step_s: of a rank; a step without a token makes no
        message. request_us: of the loop for each request. answer: tokens of a request's answer.
        """
        messages = min(rank_tok_s, 1 / step_s)
        busy_us = self.of(messages, rank_tok_s) + rank_tok_s / answer * request_us
        return ranks * busy_us / 1e6 / MOST_BUSY
