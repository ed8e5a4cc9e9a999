"""One replica's engine: requests in, events out. Usable alone, in process."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import torch

from baton.engine.audit import audit
from baton.engine.batch import Batch
from baton.engine.canary import Canary
from baton.engine.config import EngineConfig
from baton.engine.counters import Counters
from baton.engine.errors import RequestError
from baton.engine.events import Event, FinishReason
from baton.engine.forward_stream import ForwardStream, forward_stream
from baton.engine.grids import Grids
from baton.engine.intake import Intake
from baton.engine.layer_progress import OnLayers
from baton.engine.memory.available import available_memory
from baton.engine.memory.owners import Owner
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.plan import MemoryPlan
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.base import Model
from baton.engine.models.graphs import GraphedModel
from baton.engine.models.loader import load_model
from baton.engine.output import Output, OutputCollector, PromptIds
from baton.engine.prefix_share import PrefixShare
from baton.engine.request import Holding, Request, RequestSpec, RequestState, Reservation
from baton.engine.request_memory import RequestMemory
from baton.engine.request_table import RequestTable
from baton.engine.result_processor import ResultProcessor
from baton.engine.row_planner import RowPlanner
from baton.engine.runner import STEP_DEADLINE_S, Launched, ModelRunner
from baton.engine.sampling_params import SamplingParams
from baton.engine.scheduler import Scheduler
from baton.engine.status import EngineStatus
from baton.engine.stop_checker import Stop
from baton.engine.tracker import Tracker
from baton.engine.turns import turn_of
from baton.text.grammar import CompiledGrammar, GrammarCompiler
from baton.text.tokenizer import Tokenizer


class Engine:
    """Not thread-safe: one thread calls it (see `EngineLoop`).

    `step` is plan, launch, collect, process. `plan_step` and `run_step` are its two halves, for
    callers that want to hear of newly scheduled requests before the forward runs.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: Model,
        tokenizer: Tokenizer | None,
        stream: ForwardStream | None = None,
    ) -> None:
        """tokenizer: for stop strings and grammars. stream: where forwards run; None: what the
        device and the options call for. Raises ConfigError where the options do not fit."""
        device = torch.device(config.device)
        self.config = config
        self.model_config = model.config
        weights = model.weight_bytes
        free = available_memory(device) if config.memory_bytes is None else 0
        self.plan = MemoryPlan(config, model.config, weights, free + weights)
        self.states = StatePool(self.plan.slot_layout, self.plan.slots, device)
        self.pages = PagePool(self.plan.page_layout, self.plan.pages, device)
        self.counters = Counters()
        # no_buffer gives a request's live slot away at its end, so no step may be ahead of it.
        self._ahead = 1 if config.overlap and not self.plan.donates_live else 0
        self._stream = stream or forward_stream(device, overlap=bool(self._ahead))
        self._runner = ModelRunner(
            model, self.states, self.pages, self._stream, config.layer_group_bytes
        )
        if isinstance(model, GraphedModel):
            capture = partial(model.capture, self.states, self.pages)
            self._stream.submit(capture).result(STEP_DEADLINE_S)
        self._memory = RequestMemory(self.states, self.pages, config.prefix_caching, self.counters)
        chunk = model.config.mamba_chunk_size if model.config.recurrent else config.page_size
        grids = Grids(chunk, config.page_size, config.mamba_track_interval)
        tracker = Tracker(self._memory, grids, self.plan.snapshots_per_prefill, on=self.plan.tracks)
        self._scheduler = Scheduler(
            self._memory,
            RowPlanner(model.config.vocab_size, tracker),
            max_running=config.max_running,
            chunked_prefill_size=self.plan.chunked_prefill_size,
            grid=grids.checkpoint,
            held_fraction=config.held_fraction,
        )
        eos = frozenset(model.config.eos_token_ids)
        if tokenizer is not None:
            eos |= tokenizer.stop_ids
        self._intake = Intake(model.config.vocab_size, self.plan.max_model_len, eos, tokenizer)
        self._requests = RequestTable()
        self._reservations: dict[str, Reservation] = {}  # by request id
        self._quarantined: dict[str, Reservation] = {}
        self._canary = (
            Canary(config.page_size, bool(model.config.recurrent)) if config.canary else None
        )
        self._results = ResultProcessor(
            self._scheduler,
            self._requests,
            self._memory,
            donates_live=self.plan.donates_live,
            canary=self._canary,
        )
        self.prefixes = PrefixShare(self._memory, self._canary)
        self._outbox: list[Event] = []
        self._planned: Batch | None = None
        self._in_flight: deque[Launched] = deque()  # oldest first
        self._last_serial = 0

    @classmethod
    def load(
        cls, config: EngineConfig, progress: Callable[[str, float], None] | None = None
    ) -> "Engine":
        """Read the model folder. progress: told what is being done, and the fraction done."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)

        def weights(done: int, total: int) -> None:
            if progress is not None:
                progress("weights", done / max(1, total))

        model = load_model(config, weights)
        has_text = (config.model / "tokenizer.json").is_file()
        return cls(config, model, Tokenizer.from_folder(config.model) if has_text else None)

    def listen(self, on_layers: OnLayers) -> None:
        """Before the first step: hear of a held request's last chunk layer by layer, while it is
        being computed. Called on the forward's thread, or the stream's."""
        self._runner.listen(on_layers)

    @property
    def has_work(self) -> bool:
        """A step would do or report something."""
        under_way = self._planned is not None or bool(self._in_flight)
        return bool(self._outbox) or under_way or self._scheduler.has_work

    @property
    def grammars(self) -> GrammarCompiler | None:
        """Of this model; None without a tokenizer. Any thread may use it."""
        return self._intake.grammars

    def submit(self, spec: RequestSpec, grammar: CompiledGrammar | None = None) -> None:
        """Queue a request. Raises RequestError or TooLargeError; then nothing was queued.

        grammar: that of the spec, compiled by `grammars` on another thread; where it is not given
        and needed, all requests wait until it is compiled here.
        """
        request = self._enter(spec, grammar)
        self._scheduler.enqueue(request)
        self._end_if_given(request)

    def cancel(self, request_id: str, reason: str) -> None:
        """End a request, if it is here; its Finished comes with the next step.

        What it owns is free at once: whoever reads a held request's memory must have stopped.
        """
        if request_id in self._requests:
            self._end(self._requests.named(request_id), Stop(FinishReason.ABORT), reason)

    def step(self) -> list[Event]:
        """One scheduling round; [] when there is nothing to do."""
        events = self.plan_step()
        return events + self.run_step()

    def plan_step(self) -> list[Event]:
        """Decide the next step; reports what happened since the last and what was scheduled."""
        if self._planned is None:
            began = perf_counter()
            self._planned = self._scheduler.plan(self._outbox)
            self.counters.schedule_seconds += perf_counter() - began
            self.counters.steps += self._planned is not None
        return self._report()

    def run_step(self) -> list[Event]:
        """Launch what was planned, if anything was, and collect the step that has gone before it.

        If it raises, `fail_step` comes next.
        """
        ahead = 0
        if self._planned is not None:
            batch, self._planned = self._planned, None
            self._in_flight.append(self._runner.launch(batch))
            ahead = self._ahead
        if len(self._in_flight) > ahead:
            batch = self._in_flight[0].batch
            result = self._runner.collect(self._in_flight[0])
            self._in_flight.popleft()
            self._memory.complete(batch.sequence)
            self._results.process(batch, result, self._outbox)
        return self._report()

    def fail_step(self, error: Exception) -> list[Event]:
        """End the requests of a step that raised, with their reason; all others go on."""
        if not self._in_flight:
            raise error
        batch = self._in_flight.popleft().batch
        for row in batch.rows:
            self._memory.drop(row.tracked)
            request = self._requests.at(row.serial)
            if request is not None:
                reason = f"the step failed: {type(error).__name__}: {error}"
                self._end(request, Stop(FinishReason.ERROR), reason)
        self._memory.complete(batch.sequence)
        return self._report()

    def holding(self, request_id: str) -> Holding:
        """Where a hold request's state lies, from its Scheduled event on. Its pages stay the same
        until it is released or cancelled; `computed` grows with its chunks."""
        request = self._requests.named(request_id)
        if not request.spec.hold or not request.slot:
            raise RequestError(f"request {request_id} is {request.state}: it holds no hand-off")
        kept = self._memory.kept_tokens(request)
        return Holding(request.slot, request.pages, request.settled, kept)

    def destined(self, request_id: str) -> None:
        """A hold request, if it is here still, has a destination, and does not count any more among
        those that wait for one: they may hold `held_fraction` of the pool."""
        if request_id in self._requests:
            self._scheduler.destined(self._requests.named(request_id))

    def release(self, request_id: str) -> None:
        """A held request's state is no longer needed here. It ends without an event."""
        request = self._requests.named(request_id)
        if request.state is not RequestState.HELD:
            raise RequestError(f"request {request_id} is {request.state}, not held")
        self._results.finish(request, Stop(FinishReason.STOP))

    def reserve(
        self, request_id: str, tokens: int, key: bytes = b"", priority: int = 0
    ) -> Reservation | None:
        """A slot and pages for the state of `tokens` tokens, for a peer to write.

        key: those tokens (see `token_key`); what the prefix cache holds of their KV need not be
        sent. priority: the request's.
        None when there is no room now. Raises TooLargeError when there never could be.
        """
        self._check_new(request_id)
        if tokens < 1:
            raise RequestError(f"a hand-off has at least one token; got {tokens}", "tokens")
        self._intake.check_length(tokens + 1)
        beyond = max(0, len(self._quarantined) - self.plan.quarantine_slots)
        if len(self._reservations) + beyond >= self.config.tickets:
            return None
        if self._scheduler.preempted_before(turn_of(self._last_serial + 1, priority)):
            return None
        headroom = self._scheduler.headroom + len(self._reservations)
        reservation = self._memory.reserve(request_id, tokens, headroom, key)
        if reservation is not None:
            self._reservations[request_id] = reservation
        return reservation

    def abandon(self, reservation: Reservation) -> None:
        """Give a reservation back, in quarantine or not. No peer may write to it any more."""
        if self._quarantined.get(reservation.request_id) is reservation:
            del self._quarantined[reservation.request_id]
            self._memory.abandon(reservation, Owner.QUARANTINE)
        else:
            self._take(reservation)
            self._memory.abandon(reservation, Owner.TICKET)

    def quarantine(self, reservation: Reservation) -> None:
        """The hand-off is over, but its peer may still write: nobody has this memory until
        `abandon`. It is beside the tickets, as far as `MemoryPlan.quarantine_slots` go."""
        self._take(reservation)
        self._memory.quarantine(reservation)
        self._quarantined[reservation.request_id] = reservation

    def keep(self, reservation: Reservation, token_ids: Sequence[int]) -> None:
        """A peer has written a prefix from its cache into `reservation`: to this one's cache.

        Raises RequestError; then the reservation stands as it was.
        """
        self._take(reservation)
        try:
            self.prefixes.keep(reservation, token_ids)
        except RequestError:
            self._reservations[reservation.request_id] = reservation
            raise

    def adopt(
        self, spec: RequestSpec, reservation: Reservation, grammar: CompiledGrammar | None = None
    ) -> None:
        """Start a request whose state a peer has written into `reservation`.

        The state is that of prompt and output less the last token, which is computed next.
        grammar: as for `submit`.
        Raises RequestError; then the reservation stands as it was.
        """
        computed = len(spec.prompt_ids) + len(spec.output_ids) - 1
        if not spec.output_ids or spec.hold or computed != reservation.tokens:
            raise RequestError(
                f"a hand-off into a reservation of {reservation.tokens} tokens needs prompt and "
                f"output ids of {reservation.tokens + 1} tokens, at least one of them output, and "
                f"no hold; got {len(spec.prompt_ids)} + {len(spec.output_ids)}"
            )
        self._take(reservation)
        try:
            request = self._enter(spec, grammar)
        except RequestError:
            self._reservations[reservation.request_id] = reservation
            raise
        self._memory.adopt(request, reservation)
        if self._canary is not None:
            self._canary.adopted(request)
        # What came has its use for others from now on: later hand-offs need not bring it again.
        self._memory.share_pages(request)
        self._scheduler.join(request)
        self._end_if_given(request)

    def status(self) -> EngineStatus:
        scheduler = self._scheduler
        return EngineStatus(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            held=len(scheduler.held),
            slots=self.states.ids.counts(),
            pages=self.pages.ids.counts(),
            max_running=self.config.max_running,
            max_model_len=self.plan.max_model_len,
        )

    def audit(self) -> list[str]:
        """Every slot and page must be free or owned exactly once; what is not, in words."""
        return audit(
            self.states.ids,
            self.pages.ids,
            self.config.page_size,
            self._requests,
            self._reservations.values(),
            self.prefixes.loans,
            self._quarantined.values(),
            self._memory.cache,
            self._under_way(),
        )

    def flush_cache(self) -> bool:
        """Empty the prefix cache, but for what requests are using; whether nothing was."""
        self._memory.flush()
        return not self._memory.cache.nodes

    def generate(
        self,
        prompts: Sequence[PromptIds],
        sampling: SamplingParams | Sequence[SamplingParams],
    ) -> list[Output]:
        """Blocking, for scripts: submit all, step until all are done. In the prompts' order.

        Raises RequestError when any prompt is refused; then none is generated.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        specs = [
            RequestSpec(f"generate-{self._last_serial}-{number}", tuple(prompt), params)
            for number, (prompt, params) in enumerate(zip(prompts, each, strict=True))
        ]
        for spec in specs:
            self._intake.check(spec)
            self._intake.stopper(spec)
        for spec in specs:
            self.submit(spec)
        collector = OutputCollector(spec.request_id for spec in specs)
        while not collector.done and self.has_work:
            collector.take(self.step())
        return collector.outputs()

    def close(self) -> None:
        """Finish what is in flight; nothing can be run after it."""
        self._stream.close()

    def _under_way(self) -> list[Batch]:
        planned = [self._planned] if self._planned is not None else []
        return [launched.batch for launched in self._in_flight] + planned

    def _enter(self, spec: RequestSpec, grammar: CompiledGrammar | None) -> Request:
        self._check_new(spec.request_id)
        self._intake.check(spec)
        stopper, state = self._intake.stopper(spec), self._intake.grammar(spec, grammar)
        self._last_serial += 1
        request = Request(spec, self._last_serial, stopper, state)
        self._requests.add(request)
        return request

    def _check_new(self, request_id: str) -> None:
        reserved = request_id in self._reservations or request_id in self._quarantined
        if request_id in self._requests or reserved:
            raise RequestError(f"request {request_id} is here already", "request_id")

    def _take(self, reservation: Reservation) -> None:
        if self._reservations.get(reservation.request_id) is not reservation:
            raise RequestError(
                f"no such reservation for {reservation.request_id}: abandoned or adopted already",
                "request_id",
            )
        del self._reservations[reservation.request_id]

    def _end_if_given(self, request: Request) -> None:
        """The output that came with the request may have ended it already."""
        stop = request.stopper.replay(request.output)
        if stop is None and request.grammar is not None and request.grammar.ended:
            stop = request.stopper.end()
        if stop is not None:
            self._end(request, stop)

    def _end(self, request: Request, stop: Stop, error: str | None = None) -> None:
        self._outbox.append(self._results.finish(request, stop, error))

    def _report(self) -> list[Event]:
        events, self._outbox = self._outbox, []
        return events
