"""The steps that an engine computes before its first request.

The first step of a shape waits for Triton to compile the shape's kernels, for CUDA to load them and
for torch to allocate its tensors, and all requests wait with it. Batches here have each number of
prompt tokens and each kind of sampling that leads to another variant of a kernel. Their rows have
slot 0, page 0 and row 0 of the request tables, as padding rows have. Snapshots go to a slot that
nobody has yet.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from baton.core.drafts import DraftSource
from baton.core.sampling_params import SamplingParams
from baton.engine.cache.prefix_node import Snapshot
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.memory.table_changes import History, TableEntries
from baton.engine.request.draw import Draw
from baton.engine.settings.choices import windows_up_to
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.step.batch import Batch, Row, Scores

_SNAPSHOT_SLOT = 1  # the padding slot is none of a snapshot's
_SHORTEST = 4  # tokens of sequences in which a row can decode behind a prompt
_TARGETS = 8  # prompt tokens that are scored
_FOLLOWS = 4  # prompt tokens of a second row
_GREEDY = SamplingParams(temperature=0.0)
_BY_TEMPERATURE = SamplingParams(temperature=0.8, seed=1)
_OF_ALL_KINDS = SamplingParams(
    temperature=0.8,
    seed=1,
    top_k=8,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    logprobs=2,
    logprob_token_ids=(0,),
    stop_token_ids=(0,),
    min_tokens=1,
)


@dataclass(frozen=True)
class WarmUp:
    """The batches of an engine's start.

    chunk: prompt tokens of the largest step. length: tokens of the longest sequence. running:
    requests that decode at once. vocab: tokens. grid: tokens between snapshots; 0: there are none.
    window: tokens that a step verifies of a request.
    """

    chunk: int
    length: int
    running: int
    vocab: int
    grid: int
    window: int

    @classmethod
    def of(cls, plan: MemoryPlan) -> "WarmUp":
        """Return the warm-up of an engine with this plan."""
        return cls(
            chunk=plan.chunked_prefill_size,
            length=plan.max_model_len,
            running=plan.max_running,
            vocab=plan.model_config.vocab_size,
            grid=plan.grids.checkpoint if plan.tracks else 0,
            window=plan.config.window,
        )

    def batches(self) -> Iterator[Batch]:
        """Yield all batches, the largest first: the others find its memory free."""
        if self.length < _SHORTEST:
            return
        sizes = _sizes(min(self.chunk, self.length - 1))
        for size in reversed(sizes):
            begins = self._prompt(0, size, _GREEDY)
            yield self._batch([], [begins])
            # A chunk that goes on, with another prompt where the step has room for one.
            few = _FOLLOWS if size > 2 * _FOLLOWS else 0
            start = min(size, self.length - 1 - size)
            prompts = [self._prompt(start, start + size - few, _OF_ALL_KINDS)]
            if few:
                prompts.append(self._prompt(0, few, _BY_TEMPERATURE))
            yield self._batch([], prompts)
        for size in reversed(_sizes(self.running)):
            for draws in ((_GREEDY,), (_BY_TEMPERATURE,), (_GREEDY, _OF_ALL_KINDS)):
                rows = [self._decoding(sampling) for sampling in islice(cycle(draws), size)]
                yield self._batch(rows, [])
        beside = self._prompt(0, min(sizes[-1], self.length - 1), _GREEDY)
        for draws in ((_GREEDY,), (_BY_TEMPERATURE, _OF_ALL_KINDS)):
            rows = [self._decoding(sampling) for sampling in islice(cycle(draws), self.running)]
            yield self._batch(rows, [beside])
        for window in windows_up_to(self.window):
            for sampling in (_GREEDY, _OF_ALL_KINDS):
                verified = self._decoding(sampling, drafts=window - 1)
                yield self._batch([verified], [])
                yield self._batch([verified] * self.running, [beside])
                guessing = self._guessing(sampling, window - 1)
                yield self._batch([guessing], [])
                yield self._batch([guessing] * self.running, [beside])

    def _batch(self, decoding: Sequence[Row], prompts: Sequence[Row]) -> Batch:
        """Return the batch of these rows, which brings them the tokens that they begin with."""
        rows = (*decoding, *prompts)
        length = max(row.end for row in rows)
        history = History(
            tokens=bytes(TOKEN_BYTES * length),
            prompt=max(0, length - 1),
            counted=True,
            prompt_counted=True,
            stop_ids=(0,),
        )
        entries = TableEntries(array("q"), array("q"), ((0, history),))
        return Batch(sequence=0, rows=rows, decode_rows=len(decoding), entries=entries)

    def _prompt(self, start: int, end: int, sampling: SamplingParams) -> Row:
        """Return a row of prompt tokens; one with several kinds of sampling is scored too."""
        depth = end // self.grid * self.grid if self.grid else 0
        scores = None
        if sampling is _OF_ALL_KINDS:
            scores = Scores(start + 1, (0,) * min(_TARGETS, end - start), top=2, asked=(0,))
        return self._row(start, end, sampling)._replace(
            scores=scores,
            tracked=(Snapshot(depth, _SNAPSHOT_SLOT),) if depth > start else (),
        )

    def _decoding(self, sampling: SamplingParams, drafts: int = 0) -> Row:
        """Return a row that computes one token behind the first, and verifies drafts."""
        drafts = min(drafts, self.length - 3)
        draw = self._draw(sampling)
        return self._row(1, 2 + drafts, sampling)._replace(
            drafts=(0,) * drafts,
            draft_draws=(draw,) * drafts,
            draft_sources=(DraftSource.NGRAM,) * drafts,
        )

    def _guessing(self, sampling: SamplingParams, guesses: int) -> Row:
        """Return a row that computes one token behind the first, and drafts that the device
        guesses, by the model's own layer where it has one."""
        row = self._decoding(sampling, guesses)
        count = len(row.drafts)
        sources = (DraftSource.MTP,) * count
        return row._replace(
            drafts=(), draft_draws=(), draft_sources=sources, guesses=count, room=row.end
        )

    def _row(self, start: int, end: int, sampling: SamplingParams) -> Row:
        return Row(
            serial=0,
            admission=0,
            start=start,
            end=end,
            read_slot=0,
            write_slot=0,
            table_row=0,
            reaches_target=True,
            draw=self._draw(sampling),
            scores=None,
        )

    def _draw(self, sampling: SamplingParams) -> Draw:
        """Return the draw of a token, which a mask of all tokens allows where options are mixed."""
        if sampling is not _OF_ALL_KINDS:
            return Draw(sampling, short=False, allowed=None)
        return Draw(sampling, short=True, allowed=array("q", [-1] * -(-self.vocab // 64)))


def _sizes(most: int) -> tuple[int, ...]:
    """Return the powers of two below `most`, and `most`: tiles grow by factors of two."""
    sizes = [1 << power for power in range(max(0, most - 1).bit_length())]
    return (*sizes, most)
