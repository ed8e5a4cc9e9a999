"""The results of a step's forward, on the host."""

from dataclasses import dataclass

from baton.core.logprobs import TokenLogprob
from baton.engine.schedule.plain_rows import Ints

Drawn = tuple[int, TokenLogprob | None]
"""A sampled token, and its log probabilities where they are asked for."""


@dataclass(frozen=True)
class StepResult:
    """The tokens and scores of a step, in the order of `Batch.draws` and `Batch.scores`."""

    token_ids: Ints  # one a draw
    logprobs: tuple[TokenLogprob | None, ...]  # one a draw; None where not asked for
    scores: tuple[tuple[TokenLogprob, ...], ...]  # one a scored row; one entry a target
    # What was drawn behind the right drafts of each row that decodes; empty without a window.
    behind_drafts: tuple[tuple[Drawn, ...], ...] = ()
