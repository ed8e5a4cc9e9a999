"""The results of a step's forward, on the host."""

from dataclasses import dataclass
from typing import NamedTuple

from baton.core.logprobs import TokenLogprob
from baton.engine.step.plain_rows import Ints

Drawn = tuple[int, TokenLogprob | None]
"""A sampled token, and its log probabilities where they are asked for."""


class WindowResult(NamedTuple):
    """The results of a row that verified drafts, but for the token behind its newest one."""

    start: int  # tokens that were computed before it
    drafts: int  # that it verified
    drawn: tuple[Drawn, ...]  # behind each of them that was right


@dataclass(frozen=True)
class StepResult:
    """The tokens and scores of a step, in the order of `Batch.draws` and `Batch.scores`."""

    token_ids: Ints  # one a draw
    logprobs: tuple[TokenLogprob | None, ...]  # one a draw; None where not asked for
    scores: tuple[tuple[TokenLogprob, ...], ...]  # one a scored row; one entry a target
    seconds: float | None  # of the forward and the draws, on the stream; None: not known
    window: int  # tokens that it computed of each row that decodes, padding included
    committed: bool  # its recurrent layers computed tokens again, to write the states
    windows: tuple["WindowResult", ...] = ()  # of each row that decodes, where drafts are verified
