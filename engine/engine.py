"""One replica's engine: requests in, events out. Usable alone, in process."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import torch

from baton.core.errors import RequestError
from baton.core.finish import End, FinishReason
from baton.core.sampling_params import SamplingParams
from baton.core.turns import turn_of
from baton.engine.assembly.followers import Followers
from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.assembly.loader import ending_ranks, load_model, plan_of, with_memory
from baton.engine.audit import audit
from baton.engine.cache.cached_pools import CachedPools
from baton.engine.forward.runner import ModelRunner
from baton.engine.forward.starting import started
from baton.engine.forward.step_pipeline import StepPipeline
from baton.engine.handoff.prefix_share import PrefixShare
from baton.engine.handoff.reservations import Reservations
from baton.engine.layout.device import device_of
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.request_tables import RequestTables
from baton.engine.memory.state_pool import StatePool
from baton.engine.request.events import Event
from baton.engine.request.output import Output, OutputCollector, PromptIds
from baton.engine.request.request import Parked, Request, RequestSpec, RequestState, Reservation
from baton.engine.request.request_table import RequestTable
from baton.engine.schedule.admission_check import AdmissionCheck
from baton.engine.schedule.canary import canary_for
from baton.engine.schedule.donations import Donations
from baton.engine.schedule.request_memory import RequestMemory
from baton.engine.schedule.result_processor import ResultProcessor
from baton.engine.schedule.row_planner import RowPlanner
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.schedule.tracker import Tracker
from baton.engine.settings.config import EngineConfig
from baton.engine.settings.counters import Counters
from baton.engine.sizing.memory_use import naming_what_is_full
from baton.engine.speculation.drafter import drafting
from baton.engine.speculation.proposer import Proposers
from baton.engine.speculation.synthetic import synthetic_acceptance
from baton.engine.status import EngineStatus, engine_status
from baton.engine.step.kept_inputs import kept_inputs, tree_nodes, windows
from baton.engine.step.layer_progress import OnLayers
from baton.engine.step.model import Model
from baton.engine.stream.forward_stream import ForwardStream, forward_stream
from baton.engine.tiers.host_tier import host_tier
from baton.text.grammar import CompiledGrammar, GrammarCompiler
from baton.text.tokenizer import Tokenizer


class Engine:
    """One replica: requests in, events out. Not thread-safe: one thread calls it (see
    `EngineLoop`).

    `step` is plan, launch, collect, process. `plan_step` and `run_step` are its two halves, for
    callers that want to hear of newly scheduled requests before the forward runs.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: Model,
        tokenizer: Tokenizer | None,
        stream: ForwardStream | None = None,
        proposers: Proposers | None = None,
    ) -> None:
        """tokenizer: for stop strings and grammars. stream: where forwards run; None: by the
        device and the options. proposers: where the options ask for drafts; None: theirs.
        Raises ConfigError where the options do not fit."""
        device = device_of(config.device)
        self.plan = plan_of(config, model)
        self.config = config = replace(config, max_running=self.plan.max_running)
        self.states = StatePool(self.plan.slot_layout, self.plan.slots, device)
        self.pages = PagePool(self.plan.page_layout, self.plan.pages, device)
        tables = RequestTables(self.plan.tables, device)
        self.counters = Counters()
        # no_buffer gives a request's live slot to the cache, so no step may run ahead of its end.
        ahead = 1 if config.overlap and not self.plan.donates_live else 0
        self._stream = stream or forward_stream(device, overlap=bool(ahead))
        drafter, guesser = drafting(config, model, self.states, self.pages, proposers)
        kept = kept_inputs(model, self.plan.step.kept_tokens, device)
        drawn = synthetic_acceptance(config, device)
        nodes = tree_nodes(self.plan.step.kept_tokens, config.trees)
        more = self._stream, config.layer_group_bytes, kept, guesser, drawn, nodes
        if isinstance(model, LeadingModel):
            model.begin(self.states, self.pages, tables.pages, self.plan.step)
        self._runner = ModelRunner(model, self.states, self.pages, tables, *more)
        self._steps = StepPipeline(self._runner, ahead)
        known = self.states, self.pages, tables.pages, windows(kept, config.window)
        self.memory_report = started(model, self._runner, self._stream, self.plan, *known)
        self._pools = CachedPools(
            self.states, self.pages, tables, config.prefix_caching, self.counters
        )
        owned = RequestMemory(self._pools, self.counters)
        self._donations = Donations(self._pools, self.counters)
        grids, chunk_snapshots = self.plan.grids, self.plan.snapshots_per_prefill
        tracker = Tracker(self._donations, grids, chunk_snapshots, on=self.plan.tracks)
        planner = RowPlanner(tracker, config.page_size, drafter)
        self._scheduler = Scheduler(
            owned,
            self._donations,
            planner,
            max_running=self.plan.max_running,
            chunked_prefill_size=self.plan.chunked_prefill_size,
            beside_decode=config.prefill_beside_decode,
            grid=grids.checkpoint,
            held_fraction=config.held_fraction,
            itl_target_s=config.itl_target_s,
        )
        rules = config.speculative_synthetic_acceptance is None
        self._admission = AdmissionCheck(model.config, self.plan.max_model_len, tokenizer, rules)
        self._requests = RequestTable()
        self.reservations = Reservations(self._pools, self.counters)
        canary = canary_for(config, model.config, self.plan.tables.width)
        self._results = ResultProcessor(
            self._scheduler,
            self._requests,
            owned,
            self._donations,
            donates_live=self.plan.donates_live,
            canary=canary,
            drafter=drafter,
        )
        self.prefixes = PrefixShare(self._pools, self.reservations, canary)
        storages = self._runner.storages
        self.tier = host_tier(self.plan, self.prefixes, storages, self._scheduler, planner)
        self._outbox: list[Event] = []
        self._last_serial = 0

    @classmethod
    def load(
        cls, config: EngineConfig, progress: Callable[[str, float], None] | None = None
    ) -> "Engine":
        """Read the model folder. progress: told what is being done, and the fraction done.

        Raises ConfigError, on a GPU before any weight is loaded, where memory does not suffice.
        """
        if config.threads is not None:
            torch.set_num_threads(config.threads)

        def weights(done: int, total: int) -> None:
            if progress is not None:
                progress("weights", done / max(1, total))

        config = with_memory(config)
        with naming_what_is_full(config):
            model = load_model(config, weights)
            with ending_ranks(model):
                if not (config.model / "tokenizer.json").is_file():
                    return cls(config, model, None)
                return cls(config, model, Tokenizer.from_folder(config.model, None, config.end_ids))

    def listen(self, on_layers: OnLayers) -> None:
        """Register a listener for the layers of held requests' last chunks. Call this before the
        first step. The listener is called on the forward's thread, or the stream's.
        """
        self._runner.listen(on_layers)

    @property
    def followers(self) -> Followers | None:
        """The other ranks of the replica; None where there is one rank."""
        return self._runner.followers

    @property
    def has_work(self) -> bool:
        """True when a step would do or report something."""
        copies = self.tier is not None and self.tier.has_work
        return bool(self._outbox) or self._steps.busy or copies or self._scheduler.has_work

    @property
    def grammars(self) -> GrammarCompiler | None:
        """The grammar compiler of this model; None without a tokenizer. Any thread may use it."""
        return self._admission.grammars

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
            self._outbox.append(
                self._results.finish(
                    self._requests.named(request_id), End(FinishReason.ABORT), reason
                )
            )

    def step(self) -> list[Event]:
        """Run one scheduling round; return [] when there is nothing to do."""
        events = self.plan_step()
        return events + self.run_step()

    def plan_step(self) -> list[Event]:
        """Decide the next step; reports what happened since the last and what was scheduled."""
        if self._steps.planned is None:
            if self.tier is not None:
                self.tier.promote()
            began = perf_counter()
            planned = self._steps.planned = self._scheduler.plan(self._outbox)
            self.counters.schedule_seconds += perf_counter() - began
            self.counters.steps += planned is not None
        return self._report()

    def run_step(self) -> list[Event]:
        """Launch what was planned, if anything was, and collect the step that has gone before it.

        If it raises, `fail_step` comes next.
        """
        collected = self._steps.run()
        if collected is not None:
            batch, result = collected
            self._pools.complete(batch.sequence)
            prompts = sum(row.end - row.start for row in batch.prompts)
            self._scheduler.speeds.add(batch.decode_rows, prompts, result.seconds)
            self._results.process(batch, result, self._outbox)
            self.counters.late_compilations = self._runner.late_compilations
        return self._report()

    def fail_step(self, error: Exception) -> list[Event]:
        """End the requests of a step that raised, with their reason; all others go on."""
        batch = self._steps.drop_oldest()
        if batch is None:
            raise error
        self._results.begin(batch)
        for row in batch.all_rows:
            self._donations.drop(row.tracked)
            request = self._requests.at(row.serial)
            if request is not None:
                reason = f"the step failed: {type(error).__name__}: {error}"
                self._outbox.append(self._results.finish(request, End(FinishReason.ERROR), reason))
        self._pools.complete(batch.sequence)
        return self._report()

    def parked_state(self, request_id: str) -> Parked:
        """Return where a hold request's state lies, from its Scheduled event on. Its pages stay the
        same until it is released or cancelled; its tokens grow with its chunks.
        """
        request = self._requests.named(request_id)
        if not request.spec.hold or not request.slot:
            raise RequestError(f"request {request_id} is {request.state}: it holds no hand-off")
        kept = self._donations.kept_tokens(request)
        return Parked(request.settled_state, kept)

    def destined(self, request_id: str) -> None:
        """Note that a hold request, if it is still here, has a destination. Requests that wait for
        one may hold `held_fraction` of the pool.
        """
        if request_id in self._requests:
            self._scheduler.destined(self._requests.named(request_id))

    def release(self, request_id: str) -> None:
        """Free the memory of a held request. It ends without an event."""
        request = self._requests.named(request_id)
        if request.state is not RequestState.HELD:
            raise RequestError(f"request {request_id} is {request.state}, not held")
        self._results.finish(request, End(FinishReason.STOP))

    def reserve(
        self, request_id: str, tokens: int, key: bytes = b"", priority: int = 0, salt: bytes = b""
    ) -> Reservation | None:
        """Reserve a slot and pages for the state of `tokens` tokens, for a peer to write.

        key: those tokens (see `token_key`); what the prefix cache holds of their KV under
        `salt` need not be sent. priority: the request's.
        None when there is no room now. Raises TooLargeError when there never could be.
        """
        self._check_new(request_id)
        if tokens < 1:
            raise RequestError(f"a hand-off has at least one token; got {tokens}", "tokens")
        self._admission.check_length(tokens + 1)
        beyond = max(0, len(self.reservations.quarantined) - self.plan.quarantine_slots)
        ours = 0 if self.tier is None else self.tier.tickets
        if len(self.reservations) - ours + beyond >= self.config.tickets:
            return None
        if self._scheduler.admitted + len(self.reservations) >= self.plan.tables.rows - 1:
            return None
        if self._scheduler.preempted_before(turn_of(self._last_serial + 1, priority)):
            return None
        headroom = self._scheduler.headroom + len(self.reservations)
        return self.reservations.reserve(request_id, tokens, headroom, key, salt)

    def adopt(
        self, spec: RequestSpec, reservation: Reservation, grammar: CompiledGrammar | None = None
    ) -> None:
        """Start a request whose state a peer has written into `reservation`.

        The state is that of prompt and output less the last token, which is computed next.
        grammar: as for `submit`.
        Raises RequestError; then the reservation stands as it was.
        """
        computed = len(spec.prompt_ids) + len(spec.output_ids) - 1
        if computed != (reserved := reservation.state.tokens) or not spec.output_ids or spec.hold:
            raise RequestError(
                f"a hand-off into a reservation of {reserved} tokens needs prompt and "
                f"output ids of {reserved + 1} tokens, at least one of them output, and "
                f"no hold; got {len(spec.prompt_ids)} + {len(spec.output_ids)}"
            )
        self.reservations.check_adoptable(reservation, spec.cache_salt)
        request = self._enter(spec, grammar, reservation)
        self.reservations.adopt(request, reservation)
        if self.prefixes.canary is not None:
            self.prefixes.canary.adopted(request)
        # Other requests can use the pages that came: later hand-offs need not bring them again.
        self._donations.share_pages(request)
        self._scheduler.join(request)
        self._end_if_given(request)

    def status(self) -> EngineStatus:
        return engine_status(self._scheduler, self._pools, self.plan)

    def audit(self) -> list[str]:
        """Describe the slots and pages not free or owned exactly once, and ranks that differ."""
        findings = self._runner.rank_findings() + self._scheduler.check(self._steps.batches)
        owners = self._requests, self.reservations, self.prefixes.loans
        return findings + audit(self._pools, *owners, self._steps.batches)

    def flush_cache(self, salts: bytes = b"") -> bool:
        """Empty the prefix cache but for what is in use; true: nothing was. salts: see `remove`."""
        return self.prefixes.remove(salts, self._requests) if salts else self._pools.flush()

    def generate(
        self,
        prompts: Sequence[PromptIds],
        sampling: SamplingParams | Sequence[SamplingParams],
    ) -> list[Output]:
        """Submit all prompts, step until all are done, and return the outputs in order. Blocking.

        Raises RequestError when any prompt is refused; then none is generated.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        specs = [
            RequestSpec(f"generate-{self._last_serial}-{number}", tuple(prompt), params)
            for number, (prompt, params) in enumerate(zip(prompts, each, strict=True))
        ]
        for spec in specs:
            self._admission.check(spec)
            self._admission.stopper(spec)
        for spec in specs:
            self.submit(spec)
        collector = OutputCollector(spec.request_id for spec in specs)
        while not collector.done and self.has_work:
            collector.take(self.step())
        return collector.outputs()

    def close(self) -> None:
        """Finish the steps in flight, and end the other ranks. The engine cannot run after this."""
        self._stream.close()
        if self.tier is not None:
            self.tier.close()
        if self.followers is not None:
            self.followers.close()

    def _enter(
        self,
        spec: RequestSpec,
        grammar: CompiledGrammar | None,
        reservation: Reservation | None = None,
    ) -> Request:
        """Check the spec and make it a request. reservation: the one that the request adopts."""
        self._check_new(spec.request_id, reservation)
        self._admission.check(spec)
        stopper = self._admission.stopper(spec)
        rules = self._admission.rules(spec, stopper, grammar)
        self._last_serial += 1
        request = Request(spec, self._last_serial, stopper, rules)
        self._requests.add(request)
        return request

    def _check_new(self, request_id: str, reservation: Reservation | None = None) -> None:
        """Raise RequestError where a request or a reservation but this one has that id."""
        adopted = reservation is not None and reservation.request_id == request_id
        reserved = request_id in self.reservations and not adopted
        if request_id in self._requests or reserved:
            raise RequestError(f"request {request_id} is here already", "request_id")

    def _end_if_given(self, request: Request) -> None:
        """End the request if the output that came with it has ended it already."""
        stop = request.stopper.replay(request.output)
        if stop is None and request.rules is not None and request.rules.ended:
            stop = request.stopper.end()
        if stop is not None:
            self._outbox.append(self._results.finish(request, stop))

    def _report(self) -> list[Event]:
        events, self._outbox = self._outbox, []
        return events
