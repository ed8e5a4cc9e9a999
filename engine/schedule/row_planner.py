"""The conversion of a request and a range of its tokens to a row of the batch."""

from collections.abc import Iterable

from baton.engine.request.draw import Draw
from baton.engine.request.request import Request, RequestLengths
from baton.engine.schedule.tracker import Tracker
from baton.engine.speculation.drafter import Drafter
from baton.engine.step.batch import Row, Scores
from baton.engine.step.drafts import NO_DRAFTS, Drafts
from baton.engine.step.plain_rows import PlainRows
from baton.engine.step.plain_table import PlainTable

SCORED_TOKENS = 256
"""Most prompt tokens that are scored in one step: each needs a row of logits."""

# Steps overlap while fewer than one of so many running requests await a token for their drafts.
_OVERLAPS = 4


class RowPlanner:
    """The maker of rows. A row fixes all that its results will be processed by.

    plain: the running requests whose next rows are planned together. single: the others, by serial.
    """

    def __init__(self, tracker: Tracker, page_size: int, drafter: Drafter | None = None) -> None:
        """drafter: where steps verify drafts."""
        self._page_size = page_size
        self._drafter = drafter
        self._tracker = tracker
        self._scores_left = SCORED_TOKENS
        self.plain = PlainTable()
        self.single: dict[int, Request] = {}
        self._joining: list[tuple[Request, Draw, int]] = []  # with where their plain rows end

    def begin(self) -> list[Request]:
        """Begin another step. Return the requests of `plain` of which it must be told, by `extend`
        or by `leave_plain`, whether their next rows are plain too.
        """
        self._scores_left = SCORED_TOKENS
        self._joining.clear()
        if self._drafter is None:
            return self.plain.ended()
        for request in self._drafter.begin(len(self.plain) + len(self.single)):
            self.leave_plain(request)
        ended = self.plain.ended()
        for request in ended:  # here, so that a look alone leaves the rows as they are
            self._drafter.look(request)
        return ended

    @property
    def some_decode(self) -> bool:
        """Return true if a running request decodes, so that its next token waits for a step."""
        single = self.single.values()
        return len(self.plain) > 0 or any(request.decodes for request in single)

    def enter(self, request: Request) -> None:
        """Note that `request` runs."""
        self.single[request.serial] = request

    def leave(self, request: Request) -> None:
        """Note that `request` does not run, if it did."""
        if self._drafter is not None:
            self._drafter.forget(request)
        self.plain.discard(request)
        self.single.pop(request.serial, None)

    def leave_plain(self, request: Request) -> None:
        """Plan the next rows of a running request one by one."""
        if request.plain_place >= 0:
            self.plain.discard(request)
            self.single[request.serial] = request

    def check(self, running: Iterable[Request], in_flight: Iterable[Row]) -> list[str]:
        """Describe what is wrong in `plain` and `single`. [] when all is well.

        in_flight: the rows whose results are not processed.
        """
        running, rows = list(running), list(in_flight)
        findings = self.plain.check(rows)
        for request in running:
            drafts = sum(row.most_accepted for row in rows if row.serial == request.serial)
            if request.drafts_in_flight != drafts:
                findings.append(
                    f"request {request.request_id} may be {request.drafts_in_flight} tokens "
                    f"further, but steps in flight verify {drafts} drafts of it"
                )
        expected = {request.serial for request in running if request.plain_place < 0}
        if expected != self.single.keys():
            findings.append(f"requests {[*self.single]} are planned singly, not {[*expected]}")
        return findings

    def plain_with(self, request: Request) -> int:
        """Return the tokens for which a request of `plain` needs pages, so that its next row is
        plain; 0 where it would not be with pages either.
        """
        lengths = request.lengths  # each look reads the table
        limit = self._plain_limit(request, lengths, self.plain.draw(request))
        return lengths.computed + 1 if lengths.computed < limit else 0

    def extend(self, request: Request) -> None:
        """Let the next rows of a request of `plain`, which has got a page, be plain too."""
        lengths = request.lengths
        end = self._plain_end(request, lengths, self.plain.draw(request))
        self.plain.extend(request, lengths.computed, end)

    def row(self, request: Request, end: int) -> Row:
        """Plan that `request` computes its tokens up to `end`, which its pages cover already."""
        spec, lengths = request.spec, request.lengths
        start = lengths.computed
        reaches = end == request.target
        held_as_given = spec.hold and bool(request.output)
        samples = reaches and spec.sampling.max_tokens > 0 and not held_as_given
        row = Row(
            serial=request.serial,
            admission=request.admissions,
            start=start,
            end=end,
            read_slot=request.state_slot if start else 0,
            write_slot=request.slot,
            table_row=request.table_row,
            reaches_target=reaches,
            draw=self._draw(request) if samples else None,
            scores=self._scores(request, end),
            tracked=self._tracker.prefill(request, start, end),
            parks=request.request_id if reaches and spec.hold else "",
            parked_pages=tuple(request.pages) if reaches and spec.hold else (),
            position=lengths.sampled,
        )
        lengths.computed = end
        request.state_slot = request.slot
        lengths.sampled += row.draw is not None
        if row.scores is not None:
            request.scored = row.scores.start + len(row.scores.targets)
            self._scores_left -= row.scores.logits
        return row

    @property
    def speculates(self) -> bool:
        """True if rows verify drafts."""
        return self._drafter is not None

    def awaits_token(self, request: Request) -> bool:
        """Return true if the next row of a request cannot be planned before its newest token is
        known: its mask or its drafts depend on it.
        """
        if request.awaits_token:
            return True
        return self._drafter is not None and self._drafter.awaits_token(request)

    def waits(self, running: int) -> int:
        """Return how many requests that decode await their newest tokens for their drafts, if the
        next step is to wait for them. Without them it would cost nearly as much, and they would
        have a row in every second step only.

        running: requests that run.
        """
        drafter = self._drafter
        if drafter is None:
            return 0
        behind = sum(
            drafter.awaits_token(request)
            for request in self.single.values()
            if request.pending and request.decodes and not request.awaits_token
        )
        return behind if _OVERLAPS * behind >= running else 0

    def drafts(self, request: Request) -> Drafts:
        """Return the guesses that the next row of a request, which decodes, is to verify."""
        if self._drafter is None:
            return NO_DRAFTS
        return self._drafter.drafts(request, self._tracker.most_tokens - 1)

    def draft_row(self, request: Request, drafts: Drafts) -> Row:
        """Plan that `request` computes its newest token and `drafts`, as far as its pages go.

        How many of them are right is not known: its lengths count the newest token alone until the
        step is over. The row writes the request's own slot, and a snapshot beside it.
        """
        lengths, overlap_slack = request.lengths, request.drafts_in_flight
        start = lengths.computed
        end = start + overlap_slack + 1 + drafts.most
        row = Row(
            request.serial,
            request.admissions,
            start,
            end,
            request.state_slot,
            request.slot,
            request.table_row,
            True,
            self._draw(request),
            None,
            self._tracker.window(start, start + overlap_slack + 1 + drafts.deepest),
            position=lengths.sampled,
            drafts=drafts.token_ids,
            draft_draws=drafts.draws,
            draft_sources=drafts.sources,
            guesses=drafts.guesses,
            depth=drafts.depth,
            overlap_slack=overlap_slack,
            room=min(request.most_computed, len(request.pages) * self._page_size),
        )
        request.drafts_in_flight += drafts.deepest
        lengths.computed = start + 1
        request.state_slot = request.slot
        lengths.sampled += 1
        return row

    def decode_row(self, request: Request) -> Row:
        """Plan that `request` computes its newest token, and note whether its next rows are plain.

        A tracked row leaves its state in the snapshot's slot alone: the next row reads it there and
        writes the request's own slot, so nothing is copied.
        """
        lengths = request.lengths
        start = lengths.computed
        lengths.computed = start + 1
        read, write = request.state_slot, request.slot
        tracked = self._tracker.decode(start + 1)
        if tracked:
            write = tracked[0].slot
        request.state_slot = write
        draw, position = self._draw(request), lengths.sampled
        lengths.sampled += 1
        self._note_plain(request)
        return Row(
            request.serial,
            request.admissions,
            start,
            start + 1,
            read,
            write,
            request.table_row,
            True,
            draw,
            None,
            tracked,
            position=position,
        )

    def plain_rows(self) -> PlainRows:
        """Plan that each request of `plain` computes its newest token. The requests whose rows of
        this step were planned one by one, and which are plain from now on, join `plain`.
        """
        rows = self.plain.take()
        for request, draw, end in self._joining:
            self.plain.add(request, draw, end)
            del self.single[request.serial]
        return rows

    def _note_plain(self, request: Request) -> None:
        """Let `request` join `plain` if the rows that follow a decode row are plain."""
        if request.rules is not None or request.state_slot != request.slot:
            return
        lengths, draw = request.lengths, self._draw(request)
        end = self._plain_end(request, lengths, draw)
        if lengths.computed < end:
            self._joining.append((request, draw, end))

    def _plain_end(self, request: Request, lengths: RequestLengths, draw: Draw) -> int:
        """Return where the rows end that differ by their position alone: as far as no page is
        lacking, and to `_plain_limit`.
        """
        limit = self._plain_limit(request, lengths, draw)
        return min(len(request.pages) * self._page_size, limit)

    def _plain_limit(self, request: Request, lengths: RequestLengths, draw: Draw) -> int:
        """Return where the rows end that more pages would suffice for: as far as no snapshot is
        due, the answer goes on unless a stop ends it, and all sample by `draw`.
        """
        computed, drawn = lengths.computed, lengths.sampled
        left = request.stopper.limit - 1 - drawn  # the last token's row is not plain
        if draw.short:
            left = min(left, request.spec.sampling.min_tokens - drawn)
        end = min(computed + left, self._tracker.next_decode(computed))
        return end if self._drafter is None else min(end, self._drafter.plain_until(request))

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
        short = request.lengths.sampled < sampling.min_tokens and bool(request.stopper.stop_ids)
        allowed = None if request.rules is None else request.rules.allowed()
        return Draw(sampling, short, allowed)

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
