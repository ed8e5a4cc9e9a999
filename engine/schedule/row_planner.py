"""The conversion of a request and a range of its tokens to a row of the batch."""

from baton.engine.schedule.batch import Draw, Row, Scores
from baton.engine.schedule.request import Request
from baton.engine.schedule.tracker import Tracker

SCORED_TOKENS = 256
"""Most prompt tokens that are scored in one step: each needs a row of logits."""


class RowPlanner:
    """The maker of rows. A row fixes all that its results will be processed by."""

    def __init__(self, vocab_size: int, tracker: Tracker) -> None:
        self._vocab_size = vocab_size
        self._tracker = tracker
        self._scores_left = SCORED_TOKENS

    def begin(self) -> None:
        """Begin another step."""
        self._scores_left = SCORED_TOKENS

    def row(self, request: Request, end: int) -> Row:
        """Plan that `request` computes its tokens up to `end`, which its pages cover already."""
        spec, start = request.spec, request.computed
        reaches = end == request.target
        held_as_given = spec.hold and bool(request.output)
        samples = reaches and spec.sampling.max_tokens > 0 and not held_as_given
        row = Row(
            serial=request.serial,
            admission=request.admissions,
            start=start,
            tokens=request.token_ids(start, end),
            relayed=False,
            read_slot=request.state_slot if start else 0,
            write_slot=request.slot,
            pages=request.pages,
            reaches_target=reaches,
            draw=self._draw(request) if samples else None,
            scores=self._scores(request, end),
            tracked=self._tracker.prefill(request, start, end),
            held=request.request_id if reaches and spec.hold else "",
        )
        request.computed = end
        request.state_slot = request.slot
        request.pending += row.draw is not None
        if row.scores is not None:
            request.scored = row.scores.start + len(row.scores.targets)
            self._scores_left -= row.scores.logits
        return row

    def decode_row(self, request: Request) -> Row:
        """Plan that `request` computes its newest token. This is the busiest path of the
        scheduler.

        A tracked row leaves its state in the snapshot's slot alone: the next row reads it there and
        writes the request's own slot, so nothing is copied.
        """
        start = request.computed
        request.computed = start + 1
        read, write = request.state_slot, request.slot
        tracked = self._tracker.decode(start + 1)
        if tracked:
            write = tracked[0].slot
        request.state_slot = write
        relayed = request.pending > 0
        draw = self._draw(request)
        request.pending += 1
        return Row(
            request.serial,
            request.admissions,
            start,
            (0 if relayed else request.output[-1],),
            relayed,
            read,
            write,
            request.pages,
            True,
            draw,
            None,
            tracked,
        )

    def resume_limit(self, request: Request) -> int:
        """Return the deepest prefix, in tokens, that `request` may resume from: the last token is
        always computed, and so is every token whose logits are wanted.
        """
        first = self._first_unscored(request)
        last = request.target - 1
        return last if first is None else min(last, max(first, 1) - 1)

    def scored_limit(self, request: Request) -> int:
        """Return the furthest end of a chunk that scores no more positions than the step
        has left.
        """
        first = self._first_unscored(request)
        if first is None:
            return request.target
        return max(first, 1) - 1 + self._scores_left

    def _draw(self, request: Request) -> Draw:
        sampling = request.spec.sampling
        index = request.drawn
        relayed = request.pending > 0
        banned: tuple[int, ...] = ()
        if index < sampling.min_tokens:
            banned = tuple(t for t in request.stopper.stop_ids if 0 <= t < self._vocab_size)
        allowed = None if request.grammar is None else request.grammar.allowed()
        if sampling.penalised:
            output = tuple(request.output)
            prompt = request.spec.prompt_set if sampling.repetition_penalty != 1.0 else ()
            return Draw(index, sampling, banned, prompt, output, relayed, allowed)
        return Draw(index, sampling, banned, (), (), relayed, allowed)

    def _scores(self, request: Request, end: int) -> Scores | None:
        """Return the prompt tokens that a chunk scores. Logits at token t score position t + 1, so
        it scores one position past its end.
        """
        first = self._first_unscored(request)
        if first is None:
            return None
        prompt = request.spec.prompt_ids
        stop = min(end + 1, len(prompt))
        if first >= stop:
            return None
        sampling = request.spec.sampling
        targets = prompt[first:stop]
        return Scores(first, targets, sampling.prompt_logprobs, sampling.logprob_token_ids)

    def _first_unscored(self, request: Request) -> int | None:
        """Return the next prompt position to score, or None."""
        wanted = request.spec.sampling.prompt_logprobs_start
        if wanted is None:
            return None
        first = max(wanted, request.scored)
        return first if first < len(request.spec.prompt_ids) else None
