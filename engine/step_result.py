"""What a step's forward made, on the host."""

from dataclasses import dataclass

from baton.engine.events import TokenLogprob


@dataclass(frozen=True)
class StepResult:
    """In the order of `Batch.draws` and `Batch.scores`."""

    token_ids: tuple[int, ...]  # one a draw
    logprobs: tuple[TokenLogprob | None, ...]  # one a draw; None where not asked for
    scores: tuple[tuple[TokenLogprob, ...], ...]  # one a scored row; one entry a target
