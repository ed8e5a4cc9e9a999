"""The choice whether a decode rank computes a prompt itself, by what it costs and saves."""

import math
from enum import StrEnum
from typing import NamedTuple

from baton.proto.worker_pb2 import WorkerStatus

OFF = 0
"""The number of tokens with which no rank computes a prompt."""
NO_LIMIT = 2**31 - 1
"""The tokens of a prompt that a rank would compute however long it is."""
NOISE = 0.1
"""The part of a prompt's time on its rank that must be saved besides what answers lose: measured
speeds of like workers differ by as much."""


class PromptAt(NamedTuple):
    """One prompt, at one worker that may compute it."""

    status: WorkerStatus
    queued: int  # prompt tokens to compute there before it
    tokens: int  # of the prompt, without what is cached there
    load: int  # requests there, without this one
    link_s: float = 0.0  # by which the hand-off to the rank takes longer than over the best link
    behind: float = 0.0  # prompts that wait at the router behind it, for each prefill worker
    answers: int = 0  # being written there


class Verdict(StrEnum):
    """The reason why a rank computes a prompt, or why the prefill worker does."""

    HERE = "prompts gain more time than the answers on the rank lose"
    OFF = "--prefill-here is off"
    PROMPTS_WAIT = "the rank has a prompt to compute already"
    LONG = "more tokens are left to compute than --prefill-here says"
    FEWER_THERE = "the prefill worker has no more tokens to compute than the rank would have"
    FULL = "the rank has no free place: its first token would bring no other one sooner"
    LIMIT = "a step of its answers with a part of the prompt would exceed --itl-target-ms"
    NO_GAIN = "prompts would not gain more time than the answers on the rank lose"


class Sum(NamedTuple):
    """The seconds that requests wait longer or shorter if the rank computes a prompt. In units of
    a prompt token while no worker has measured one.
    """

    there_s: float  # to the prompt's end at the prefill worker, its queue included
    here_s: float  # to its end on the rank
    behind_s: float  # that prompts behind it wait shorter, together
    answers_s: float  # that the answers on the rank wait longer, together
    noise_s: float  # that must be saved besides
    known: bool  # the time of a prompt token is

    @property
    def saved_s(self) -> float:
        """Return the seconds that the rank saves all requests together; below 0: it costs them."""
        return self.there_s - self.here_s + self.behind_s - self.answers_s - self.noise_s


class PrefillHere:
    """A rule that gives a prompt to a rank where that saves more time than it costs.

    A rank that computes a prompt writes answers more slowly meanwhile, so it gets one at a time
    from a router, and none while prompts or answers that were preempted wait there.
    """

    def __init__(self, most_tokens: int | None = OFF, itl_target_s: float | None = None) -> None:
        """most_tokens: of a prompt, without what the rank has cached; None: by measured speeds.
        itl_target_s: steps with prompts and answers are to take at most so long; None: any time.
        """
        self._most = most_tokens
        self._itl_target_s = itl_target_s

    @property
    def name(self) -> int | str:
        """Return the value of `--prefill-here`."""
        return "auto" if self._most is None else self._most or "off"

    @property
    def off(self) -> bool:
        return self._most == OFF

    def wanted(self, there: PromptAt, here: PromptAt) -> bool:
        """Return True if the rank should compute the prompt. there: at its prefill worker."""
        return self.verdict(there, here) is Verdict.HERE

    def verdict(self, there: PromptAt, here: PromptAt) -> Verdict:
        """Return `HERE` if the rank should compute the prompt, else why it should not."""
        if (obstacle := self._obstacle(here)) is not None:
            return obstacle
        if self._most is None:
            return Verdict.HERE if sum_of(there, here).saved_s > 0 else Verdict.NO_GAIN
        if here.tokens > self._most:
            return Verdict.LONG
        fewer = here.tokens < there.queued + there.behind * there.tokens + there.tokens
        return Verdict.HERE if fewer else Verdict.FEWER_THERE

    def threshold(self, prefill: PromptAt | None, rank: PromptAt) -> int:
        """Return the most tokens of a prompt, cached nowhere, that the rank would compute now.

        prefill: the worker that would compute it else, with the shortest queue; None: none is
        there.
        """
        if self._most is not None:
            return self._most
        if prefill is None or self._obstacle(rank) is not None:
            return 0
        most = rank.status.max_model_len or NO_LIMIT
        none = sum_of(prefill._replace(tokens=0), rank._replace(tokens=0)).saved_s
        one = sum_of(prefill._replace(tokens=1), rank._replace(tokens=1)).saved_s
        if one >= none:
            return most if one > 0 else 0
        return max(min(math.ceil(none / (none - one)) - 1, most), 0)

    def _obstacle(self, here: PromptAt) -> Verdict | None:
        """Return why the rank could compute no prompt at all; None: it could."""
        if self.off:
            return Verdict.OFF
        if here.queued:
            return Verdict.PROMPTS_WAIT
        if self._most is not None:
            return None
        status = here.status
        if here.load >= status.max_running:
            return Verdict.FULL
        if self._itl_target_s is not None and here.answers:
            step_us = status.decode_step_us + status.beside_decode * status.prompt_token_us
            if step_us > self._itl_target_s * 1e6:
                return Verdict.LIMIT
        return None


def sum_of(there: PromptAt, here: PromptAt) -> Sum:
    """Return what it costs and saves if the rank computes the prompt.

    A worker that has computed no prompt yet counts as fast as the other.
    """
    there_us, here_us = there.status.prompt_token_us, here.status.prompt_token_us
    known = bool(there_us or here_us)
    there_s = (there_us or here_us or 1e6) / 1e6
    here_s = (here_us or there_us or 1e6) / 1e6
    own_s = here.tokens * here_s
    steps_s = 0.0  # of the answers, between the parts of the prompt
    if here.answers and here.status.beside_decode and known:
        steps_s = here.tokens / here.status.beside_decode * here.status.decode_step_us / 1e6
    return Sum(
        (there.queued + there.tokens) * there_s + there.link_s,
        here.queued * here_s + own_s + steps_s,
        there.behind * there.tokens * there_s,
        here.answers * own_s,
        NOISE * own_s,
        known,
    )
