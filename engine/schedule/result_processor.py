"""The conversion of a step's results to events, by what its Batch recorded."""

from collections import deque
from itertools import repeat

from baton.core.error_codes import ErrorCode
from baton.core.errors import InvariantError
from baton.core.finish import End, FinishReason, Usage
from baton.core.logprobs import PromptLogprobs, TokenLogprob
from baton.engine.request.events import (
    ChunkComputed,
    Event,
    PrefillHeld,
    PromptScored,
    RequestFinished,
    TokenSampled,
)
from baton.engine.request.request import Request
from baton.engine.request.request_table import RequestTable
from baton.engine.schedule.canary import Canary
from baton.engine.schedule.donations import Donations
from baton.engine.schedule.request_memory import RequestMemory
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.speculation.drafter import Drafter
from baton.engine.step.batch import Batch, Row
from baton.engine.step.step_result import Drawn, StepResult, WindowResult
from baton.text.errors import GrammarError
from baton.text.token_rules import TokenRules


class ResultProcessor:
    """Appends sampled tokens, ends requests and holds them.

    A row whose request has left the table in the meantime (cancelled) leaves no trace.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: RequestTable,
        memory: RequestMemory,
        donations: Donations,
        donates_live: bool,
        canary: Canary | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """donates_live: the strategy is no_buffer. canary: to check every step with. drafter: is
        told what became of drafts, and how long steps take."""
        self._drafter = drafter
        self._scheduler = scheduler
        self._requests = requests
        self._memory = memory
        self._donations = donations
        self._donates_live = donates_live
        self._canary = canary
        self._shares_chunks = not donations.pools.stateful

    def begin(self, batch: Batch) -> None:
        """Note that the stream has come to this step."""
        if self._canary is not None:
            self._canary.begin(batch)

    def process(self, batch: Batch, result: StepResult, outbox: list[Event]) -> None:
        """Append this step's events to `outbox`."""
        self.begin(batch)
        if self._drafter is not None:
            self._drafter.took(batch, result)
        token_ids = result.token_ids.tolist()
        rows, first = batch.rows, len(batch.plain)
        if self._canary is None:
            self._process_plain(batch, result, outbox)
        else:
            rows, first = batch.all_rows, 0
        draws = zip(token_ids[first:], result.logprobs[first:], strict=True)
        scores = iter(result.scores)
        for index, row in enumerate(rows, first):
            drawn = next(draws) if row.draw is not None else None
            if row.verifies and drawn is not None:
                self._process_window(row, drawn, result.windows[index], outbox)
                continue
            scored = next(scores) if row.scores is not None else None
            self._process_row(row, drawn, scored, outbox)

    def _process_plain(self, batch: Batch, result: StepResult, outbox: list[Event]) -> None:
        """Process the plain rows, whose draws come first: nothing is due but the token, unless the
        request has left the table of plain rows after the step was planned, or may be over.

        No statement here is executed for every row.
        """
        group, count = batch.plain.group, len(batch.plain)
        if not count:
            return
        token_ids, logprobs = result.token_ids[:count].tolist(), result.logprobs[:count]
        outputs = list(group.outputs)
        columns = group.request_ids, batch.plain.positions.tolist(), token_ids, logprobs
        # Half the time of calls of TokenSampled.
        sampled = list(map(tuple.__new__, repeat(TokenSampled), zip(*columns, strict=True)))
        left = self._scheduler.settle(batch.plain)
        for index in reversed(left):
            del sampled[index]
            outputs[index] = []  # what is appended to it is of no use
        deque(map(list.append, outputs, token_ids), maxlen=0)
        outbox += sampled
        for index in left:
            drawn = token_ids[index], logprobs[index]
            self._process_row(batch.plain_row(index), drawn, None, outbox)
        for index in group.may_end(token_ids):
            if index not in left:
                request = group.requests[index]
                stop = request.stopper.push(request.output)
                if stop is not None:
                    outbox.append(self.finish(request, stop))

    def _process_window(
        self, row: Row, first: Drawn, window: WindowResult, outbox: list[Event]
    ) -> None:
        """Process the tokens of a row that verified drafts, one after another, as the results of
        rows of one token. Those behind the end of the answer come to nothing, as the snapshot of a
        depth that was not reached.

        first: what was drawn behind the newest token.
        """
        if window.start >= row.room:  # its request had ended by its length: nothing was computed
            self._donations.drop(row.tracked)
            return
        request, accepted = self._requests.at(row.serial), len(window.drawn)
        if request is not None:
            sources = row.sources(window.drafts)
            self._memory.count_drafts(request, sources, accepted)
            if row.most_drafts and self._drafter is not None:
                self._drafter.verified(request, sources, window.drafts, accepted)
            request.lengths.sampled += accepted
            if request.slot:  # else it was preempted
                self._check_start(request, window)
                request.lengths.computed += accepted
                request.drafts_in_flight -= row.most_accepted
        reached = range(window.start + 1, window.start + accepted + 2)
        self._donations.drop([t for t in row.tracked if t.depth not in reached])
        position = 0 if request is None else len(request.output)
        singles = row.accepted(accepted + 1, window.start, position)
        for single, drawn in zip(singles, (first, *window.drawn), strict=True):
            self._process_row(single, drawn, None, outbox)

    @staticmethod
    def _check_start(request: Request, window: WindowResult) -> None:
        if window.start != request.lengths.settled:
            raise InvariantError(
                f"request {request.request_id}: a step began at {window.start} tokens, but "
                f"{request.lengths.settled} were computed"
            )

    def _process_row(
        self,
        row: Row,
        drawn: tuple[int, TokenLogprob | None] | None,
        scored: tuple[TokenLogprob, ...] | None,
        outbox: list[Event],
    ) -> None:
        request = self._requests.at(row.serial)
        if request is None or request.admissions != row.admission or not request.slot:
            self._donations.drop(row.tracked)
            if self._canary is not None:
                self._canary.forget(row)
        else:
            self._settle(request, row)
        if request is None:
            return
        if row.scores is not None and scored is not None:
            outbox.append(
                PromptScored(request.request_id, PromptLogprobs(row.scores.start, scored))
            )
        if request.spec.hold:
            outbox.append(ChunkComputed(request.request_id, row.start, row.end))
        if not row.reaches_target:
            return
        if row.draw is not None and drawn is not None:
            end = self._sampled(request, row.position, drawn, outbox)
        else:
            end = self._computed(request)
        if end is not None:
            outbox.append(end)
        elif request.spec.hold:
            self._scheduler.hold(request)
            outbox.append(PrefillHeld(request.request_id))

    def finish(
        self,
        request: Request,
        end: End,
        error: str | None = None,
        error_code: ErrorCode = ErrorCode.INTERNAL,
    ) -> RequestFinished:
        """End `request`: it leaves every queue and gives back what it owns."""
        self._scheduler.leave_plain(request)
        if self._drafter is not None:
            self._drafter.ended(request)
        if self._donates_live:
            self._donations.donate_live(request)
        else:
            self._donations.share_pages(request)
        state_tokens = self._donations.finish(request)
        self._scheduler.drop(request)
        self._requests.remove(request)
        return RequestFinished(
            request.request_id,
            end,
            Usage(
                len(request.spec.prompt_ids),
                len(request.output),
                request.cached_tokens,
                request.cached_host,
                request.cached_file,
                request.drafted.usage(),
            ),
            error=error,
            state_tokens=state_tokens,
            error_code=error_code,
        )

    def _settle(self, request: Request, row: Row) -> None:
        """Note that the row's KV and state are computed, and give its snapshots to the cache."""
        if self._canary is not None:
            self._canary.step(request, row)
        request.lengths.settled = row.end
        if request.resumes_from is not None and row.start == request.resumes_from.depth:
            self._memory.snapshot_read(request)
        if row.tracked:
            self._donations.donate(request, row.tracked)
            if row.write_slot != request.slot:
                self._memory.resume_from(request, row.write_slot)
        elif self._shares_chunks and row.end - row.start > 1:
            self._donations.share_pages(request)

    def _sampled(
        self,
        request: Request,
        position: int,
        drawn: tuple[int, TokenLogprob | None],
        outbox: list[Event],
    ) -> RequestFinished | None:
        token, logprob = drawn
        request.output.append(token)
        outbox.append(TokenSampled(request.request_id, position, token, logprob))
        end = request.stopper.push(request.output)
        if request.rules is not None and (end is None or end.reason is FinishReason.LENGTH):
            return self._constrained(request, request.rules, token, end)
        return self.finish(request, end) if end is not None else None

    def _constrained(
        self, request: Request, rules: TokenRules, token: int, end: End | None
    ) -> RequestFinished | None:
        """End an answer whose rules let nothing follow. It fails where they want what the model
        cannot say. The mask of the next token is kept for the next row.
        """
        try:
            rules.push(token)
            if rules.ended:
                end = request.stopper.end()
            elif end is None:
                rules.allowed()
        except GrammarError as error:
            return self.finish(request, End(FinishReason.ERROR), str(error), error.code)
        return self.finish(request, end) if end is not None else None

    def _computed(self, request: Request) -> RequestFinished | None:
        """End a request that was to be computed without a sample, unless it is held."""
        if request.spec.hold and request.output:
            return None
        return self.finish(request, End(FinishReason.LENGTH))
