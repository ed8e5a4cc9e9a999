"""The choice whether a decode rank computes a prompt itself."""

import math
from enum import StrEnum
from typing import NamedTuple

from baton.proto.worker_pb2 import WorkerStatus

OFF = 0
"""The number of tokens with which no rank computes a prompt."""
GAIN = 0.8
"""The part of the prefill worker's time that a rank may take for a prompt: where it gains less, the
answers that the rank writes are better left alone."""
MOST_S = 1.0
"""The seconds that a rank may spend on one prompt."""


class PromptAt(NamedTuple):
    """One prompt, at one worker that may compute it."""

    status: WorkerStatus
    queued: int  # prompt tokens to compute there before it
    tokens: int  # of the prompt, without what is cached there
    load: int  # requests there, without this one
    link_s: float = 0.0  # by which the hand-off to the rank takes longer than over the best link


class Verdict(StrEnum):
    """The reason why a rank computes a prompt, or why the prefill worker does."""

    HERE = "the prefill worker would take longer"
    OFF = "--prefill-here is off"
    PROMPTS_WAIT = "the rank has a prompt to compute already"
    LONG = "more tokens are left to compute than --prefill-here says"
    FEWER_THERE = "the prefill worker has no more tokens to compute than the rank would have"
    FULL = "the rank has no free place: its first token would bring no other one sooner"
    UNKNOWN = "no worker has measured the time of a prompt token yet"
    BOUND = "the rank would compute it for more than a second"
    NO_GAIN = "the prefill worker would not take 1.25 times as long as the rank"


class PrefillHere:
    """A rule that gives prompts to the rank where the prefill worker would take longer.

    A rank that computes a prompt writes answers more slowly meanwhile, so it gets one at a time
    from a router, and none while prompts or answers that were preempted wait there.
    """

    def __init__(self, most_tokens: int | None = OFF) -> None:
        """most_tokens: of a prompt, without what the rank has cached; None: by measured speeds."""
        self._most = most_tokens

    @property
    def name(self) -> int | str:
        """Return the value of `--prefill-here`."""
        return "auto" if self._most is None else self._most or "off"

    def wanted(self, there: PromptAt, here: PromptAt) -> bool:
        """Return True if the rank should compute the prompt. there: at its prefill worker."""
        return self.verdict(there, here) is Verdict.HERE

    def verdict(self, there: PromptAt, here: PromptAt) -> Verdict:
        """Return `HERE` if the rank should compute the prompt, else why it should not."""
        if self._most == OFF:
            return Verdict.OFF
        if here.queued:
            return Verdict.PROMPTS_WAIT
        if self._most is not None:
            if here.tokens > self._most:
                return Verdict.LONG
            fewer = here.tokens < there.queued + there.tokens
            return Verdict.HERE if fewer else Verdict.FEWER_THERE
        if here.load >= here.status.max_running:
            return Verdict.FULL
        speed_s = there.status.prompt_token_us / 1e6
        here_s = rank_s(there, here)
        if not here_s:
            return Verdict.UNKNOWN
        if here_s > MOST_S:
            return Verdict.BOUND
        sooner = here_s < GAIN * (there.queued + there.tokens) * speed_s + GAIN * there.link_s
        return Verdict.HERE if sooner else Verdict.NO_GAIN

    def threshold(self, prefill: PromptAt | None, rank: PromptAt) -> int:
        """Return the most tokens of a prompt, cached nowhere, that the rank would compute now.

        prefill: the worker that would compute it else, with the shortest queue; None: none is
        there.
        """
        if self._most is not None:
            return self._most
        if prefill is None or rank.queued or rank.load >= rank.status.max_running:
            return 0
        return _most_tokens(prefill, rank)


def rank_s(there: PromptAt, here: PromptAt) -> float:
    """Return the seconds that the prompt would take on its rank; 0: not known."""
    return here.tokens * _token_s(here, there.status.prompt_token_us / 1e6)


def _token_s(rank: PromptAt, unknown_s: float) -> float:
    """Return the seconds that each token of a prompt would take on a rank; 0: not known.

    unknown_s: on a rank that has computed no prompt yet.
    """
    status = rank.status
    token_s = status.prompt_token_us / 1e6 or unknown_s
    if token_s and rank.load and status.beside_decode:
        return token_s + status.decode_step_us / 1e6 / status.beside_decode
    return token_s


def _most_tokens(prefill: PromptAt, rank: PromptAt) -> int:
    speed_s = prefill.status.prompt_token_us / 1e6
    token_s = _token_s(rank, speed_s)
    if not token_s:
        return 0
    longer_s = token_s - GAIN * speed_s
    bound = GAIN * prefill.queued * speed_s / longer_s if longer_s > 0 else math.inf
    return int(min(bound, MOST_S / token_s))
