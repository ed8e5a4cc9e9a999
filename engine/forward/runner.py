"""Runs forwards: launch, then collect. The two are apart so that planning comes between."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from baton.core.errors import InvariantError, RankError
from baton.core.logprobs import TokenLogprob
from baton.engine.assembly.followers import Followers
from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.forward.forward_builder import (
    bind_forward,
    look_up,
    pack_forward,
    same_rows,
)
from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.forward.sampler import Sampled, sample
from baton.engine.forward.sampling_batch import SamplingBatch, bind_sampling, pack_sampling
from baton.engine.forward.table_updates import apply_changes, pack_changes
from baton.engine.forward.used_window import used_window
from baton.engine.forward.verification import (
    Verified,
    WindowPlan,
    accepted,
    asking_behind,
    plan_window,
    sample_window,
)
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage
from baton.engine.memory.request_tables import RequestTables
from baton.engine.memory.state_pool import StatePool
from baton.engine.memory.table_changes import TableEntries
from baton.engine.request.draw import Draw
from baton.engine.speculation.proposer import DeviceProposer, TreeProposer
from baton.engine.speculation.synthetic import SyntheticAcceptance
from baton.engine.step.batch import Batch
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.step.layer_progress import LayerBytes, LayerProgress, OnLayers
from baton.engine.step.model import Model
from baton.engine.step.plain_rows import Ints, PlainGroup
from baton.engine.step.step_result import Drawn, StepResult, WindowResult
from baton.engine.step.tree_path import keep_path
from baton.engine.stream.forward_clock import ForwardTimer, forward_clock
from baton.engine.stream.forward_stream import ForwardStream, Pending
from baton.kernels.sampling import LogProbs

# Far longer than any step: a stream that is silent for so long has lost its device.
STEP_DEADLINE_S = 600.0


@dataclass(frozen=True)
class Launched:
    """A step that was given to the stream."""

    batch: Batch
    done: Pending["_Done"]


@dataclass(frozen=True)
class _Done:
    """The results of a step on the device."""

    sampled: Sampled
    verified: Verified | None
    timer: ForwardTimer
    window: int  # see `StepResult`
    committed: bool


@dataclass(frozen=True)
class _Prepared:
    """A step whose plan is on the device."""

    entries: TableEntries
    changes: DevicePack | None  # what `entries` send, where they are not empty
    packed: DevicePack
    forward: ForwardBatch
    sampling: SamplingBatch
    group: PlainGroup | None  # of the rows, where all are plain
    window: WindowPlan | None  # where drafts are verified


class ModelRunner:
    """One model over its pools of slots and pages and its request tables, its forwards on one
    stream.

    Sampled tokens go to the next step by the request tables, on the device; the host learns them
    when it collects, which may be after the next step was launched.
    """

    def __init__(
        self,
        model: Model,
        states: StatePool,
        pages: PagePool,
        tables: RequestTables,
        stream: ForwardStream,
        layer_group_bytes: int,
        kept: tuple[Tensor, ...] = (),
        proposer: DeviceProposer | TreeProposer | None = None,
        synthetic: SyntheticAcceptance | None = None,
        nodes: Tensor | None = None,
    ) -> None:
        """kept, nodes: memory for the inputs of verified tokens, and for the links of trees; see
        `Window`. proposer: of the drafts that the device guesses. synthetic: draws which of them
        are right, in place of verification."""
        self._synthetic = synthetic
        self._model = model
        self._states = states
        self._pages = pages
        self._tables = tables
        self._page_size = pages.layout.page_size
        self._kept = kept
        self._nodes = nodes
        self._proposer = proposer
        # A step that could not be packed, and what it was to bring: its requests may have rows in
        # the next step already, which find their pages and positions by it.
        self._unpacked: tuple[TableEntries, Batch] | None = None
        self._last: _Prepared | None = None
        self._stream = stream
        self._device = pages.storage.device
        self._clock = forward_clock(self._device)
        self._layers = LayerBytes.of(states.layout, pages.layout)
        self._group_bytes = layer_group_bytes
        self._on_layers: OnLayers | None = None
        self._compiled_at_start = 0

    @property
    def late_compilations(self) -> int:
        """Variants of kernels that were compiled after `warm_up`."""
        return (self._model.kernels.compilations or 0) - self._compiled_at_start

    @property
    def followers(self) -> Followers | None:
        """The other ranks that run the model; None where there is one rank."""
        return self._model.followers if isinstance(self._model, LeadingModel) else None

    @property
    def storages(self) -> tuple[RankStorage, ...]:
        """The storages of the pools of all ranks."""
        followers = self.followers
        if followers is None or followers.storages is None:
            return (RankStorage(self._states.storage, self._pages.storage),)
        return followers.storages.ranks

    def rank_findings(self) -> list[str]:
        """Describe what other ranks have written elsewhere than this one, behind the steps so
        far."""
        model = self._model
        if not isinstance(model, LeadingModel):
            return []
        try:
            return self._stream.submit(model.findings).result(STEP_DEADLINE_S)
        except RankError as error:
            return [str(error)]

    def listen(self, on_layers: OnLayers) -> None:
        """Register the listener for the layers of held requests' last chunks, before the first
        step.
        """
        self._on_layers = on_layers

    def warm_up(self, batches: Iterable[Batch]) -> int:
        """Compute steps whose results nobody wants, before the first one, and return their number.

        Nothing is read of a step but that it is over: ranks that compile for long are not late.
        """
        number = 0
        for batch in batches:
            self.launch(batch).done.result(STEP_DEADLINE_S)
            number += 1
        self._compiled_at_start = self._model.kernels.compilations or 0
        return number

    def launch(self, batch: Batch) -> Launched:
        """Give the step to the stream. An error in it is raised by `collect`."""
        prepare = partial(self._prepare, batch)
        return Launched(batch, self._stream.submit_prepared(prepare, self._run))

    @torch.inference_mode()
    def _prepare(self, batch: Batch) -> "_Prepared":
        """Copy the plan to the device."""
        entries = batch.entries
        if self._unpacked is not None:
            before, lost = self._unpacked
            entries = before.without(lost.draws.table_rows.tolist()).then(entries)
        self._unpacked = entries, batch
        changes = None
        if entries:
            pack = HostPack()
            pack_changes(entries, pack)
            changes = pack.ship(self._device)
        self._last = prepared = self._again(batch, entries, changes) or self._anew(
            batch, entries, changes
        )
        self._unpacked = None
        return prepared

    def _again(
        self, batch: Batch, entries: TableEntries, changes: DevicePack | None
    ) -> "_Prepared | None":
        """Return the last step with what differs in this one, if it has the same rows and all are
        plain: the tables know their new positions.
        """
        last = self._last
        if last is None or batch.rows or last.group is not batch.plain.group:
            return None
        forward = same_rows(last.forward, batch.plain.starts)
        return replace(last, entries=entries, changes=changes, forward=forward)

    def _anew(self, batch: Batch, entries: TableEntries, changes: DevicePack | None) -> "_Prepared":
        pack = HostPack()
        plan = pack_forward(batch, self._model, pack)
        sampling = batch.draws, batch.asking, batch.scores
        pack_sampling(*sampling, pack)
        packed = pack.ship(self._device)
        progress = self._progress(batch)
        forward = bind_forward(batch, plan, packed, self._tables, progress, self._kept, self._nodes)
        group = None if batch.rows else batch.plain.group
        draws = bind_sampling(*sampling, packed)
        window = plan_window(batch, draws, self._device) if batch.window > 1 else None
        return _Prepared(entries, changes, packed, forward, draws, group, window)

    @torch.inference_mode()
    def _run(self, prepared: "_Prepared") -> _Done:
        """Run the forward, sample. Reads nothing back."""
        timer = self._clock.start()
        packed, forward, tables = prepared.packed, prepared.forward, self._tables
        if prepared.changes is not None:
            apply_changes(prepared.entries, prepared.changes, tables)
        window, kernels = prepared.window, self._model.kernels
        places = packed, forward, tables, self._page_size
        ends, begun = look_up(*places, window, self._proposer, kernels)
        readable = kernels.native is not None  # what lies on the device, without waiting for it
        if readable and window is not None and begun is not None:
            forward, window, begun = used_window(forward, window, begun)
        if forward.nodes is not None and begun is not None and begun.nodes is not None:
            forward.nodes.copy_(begun.nodes.flatten())
        logits = self._model.forward(forward, self._states, self._pages)
        rows = packed.ints("draw_rows")
        if window is None or begun is None:
            sampled, verified = sample(logits, prepared.sampling, ends, tables, kernels), None
        else:
            draws = prepared.sampling, window, begun
            more = kernels, readable, self._synthetic
            sampled, verified = sample_window(logits, *draws, ends, tables, *more)
            if forward.window is not None:
                if verified.path is not None:
                    self._keep_path(forward, verified.path)
                written = accepted(forward, window, begun, verified.counts)
                self._model.commit(forward, self._states, written)
            # The row of a request that has ended has no place for another token.
            rows, ends = rows.clone(), ends.clone()
            rows[: len(begun.alive)] *= begun.alive
            ends[: len(begun.alive)] *= begun.alive
        tables.append(rows, ends, sampled.token_ids)
        verified = None if verified is None else verified.to_host()
        computed = 1 if forward.window is None else forward.window.tokens
        done = sampled.to_host(), verified, timer, computed, forward.window is not None
        timer.stop()
        return _Done(*done)

    def _keep_path(self, forward: ForwardBatch, path: Tensor) -> None:
        if isinstance(self._model, LeadingModel):
            self._model.keep_path(forward, self._pages, path)
        else:
            keep_path(forward, self._pages, path)

    def _progress(self, batch: Batch) -> LayerProgress | None:
        """Return the progress of a step that finishes a prompt to be handed over; None for
        others.
        """
        if self._on_layers is None or not (rows := batch.last_chunks):
            return None
        mark, tell = self._stream.mark, self._on_layers
        several = isinstance(self._model, LeadingModel)
        return LayerProgress(
            rows, self._layers, mark, tell, self._group_bytes, several_ranks=several
        )

    def _result(self, done: Pending[_Done]) -> _Done:
        if isinstance(self._model, LeadingModel):
            return self._model.result(done, STEP_DEADLINE_S)
        return done.result(STEP_DEADLINE_S)

    def collect(self, launched: Launched) -> StepResult:
        """Wait for the step and bring its results to the host."""
        batch = launched.batch
        try:
            done = self._result(launched.done)
        except TimeoutError as error:
            raise InvariantError(
                f"step {batch.sequence} took over {STEP_DEADLINE_S:g} s"
            ) from error
        sampled = done.sampled
        tokens = sampled.token_ids.numpy()
        scored = _token_logprobs(sampled.scores)
        logprobs = _of_draws(tokens, batch.asking, sampled.logprobs)
        scores: list[tuple[TokenLogprob, ...]] = []
        for _, row in batch.scores:
            unscored = row.targets[: len(row.targets) - row.logits]
            first = [TokenLogprob(token, None) for token in unscored]
            asked = len(row.asked)
            rest = [
                next(scored).entry(token, row.top, asked) for token in row.targets[len(unscored) :]
            ]
            scores.append((*first, *rest))
        windows = () if done.verified is None else _windows(batch, done.verified)
        kind = done.window, done.committed
        return StepResult(
            tokens, tuple(logprobs), tuple(scores), done.timer.seconds(), *kind, windows
        )


def _windows(batch: Batch, verified: Verified) -> tuple[WindowResult, ...]:
    """Return the results of the rows that decode, in order."""
    tokens, counts = verified.tokens.numpy(), verified.counts.tolist()
    behind: list[list[Drawn]] = [[] for _ in counts]
    for place, found in enumerate(verified.logprobs, 1):
        logprobs = _of_draws(tokens[:, place], asking_behind(batch, place), found)
        for index, drawn in enumerate(behind):
            if place < counts[index]:
                drawn.append((int(tokens[index, place]), logprobs[index]))
    columns = verified.starts.tolist(), verified.drafts.tolist(), map(tuple, behind)
    return tuple(map(WindowResult, *columns))


def _of_draws(
    tokens: Ints, asking: tuple[tuple[int, Draw], ...], found: LogProbs | None
) -> list[TokenLogprob | None]:
    """Return the log probabilities of each draw, None where they are not asked for.

    tokens: [draws]. found: those of `asking`, in order.
    """
    logprobs: list[TokenLogprob | None] = [None] * len(tokens)
    drawn = _token_logprobs(found)
    for index, draw in asking:
        asked = len(draw.sampling.logprob_token_ids)
        top = draw.sampling.logprobs or 0
        logprobs[index] = next(drawn).entry(int(tokens[index]), top, asked)
    return logprobs


@dataclass(frozen=True)
class _HostLogprob:
    """One row of LogProbs on the host."""

    chosen: float
    top_ids: list[int]
    top_values: list[float]
    asked: list[float]

    def entry(self, token: int, top: int, asked: int) -> TokenLogprob:
        return TokenLogprob(
            token,
            self.chosen,
            tuple(self.top_ids[:top]),
            tuple(self.top_values[:top]),
            tuple(self.asked[:asked]),
        )


def _token_logprobs(found: LogProbs | None) -> Iterator[_HostLogprob]:
    if found is None:
        return iter(())
    columns = found.chosen, found.top_ids, found.top_values, found.asked
    return (_HostLogprob(*row) for row in zip(*(c.tolist() for c in columns), strict=True))
