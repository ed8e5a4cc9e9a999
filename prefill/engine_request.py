"""One prefill request in this worker's engine."""

import asyncio
import time
from collections.abc import Callable

from baton.core.errors import RequestError
from baton.core.sampling_params import SamplingParams
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.request.request import RequestSpec
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.convert import sampling_from_proto
from baton.text.grammar import CompiledGrammar
from baton.transfer.handoff import Handoff
from baton.worker.context import WorkerContext
from baton.worker.prefix_fetcher import Outcome, PrefixFetcher
from baton.worker.state_options import StateReturn

# A request whose first token is given is not sampled here, and must not end here either.
_GIVEN = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


class EngineRequest:
    """The calls into the engine for one hand-off: submit, destine, release, cancel.

    Each call is queued for the engine's thread. What the engine answers comes as events.
    """

    def __init__(
        self,
        context: WorkerContext,
        request: handoff_pb2.PrefillRequest,
        engine_id: str,
        fetcher: PrefixFetcher,
        handoff: Handoff,
        on_error: Callable[[BaseException], None],
    ) -> None:
        """engine_id: the request's name in this engine. It is unique, where attempts may overlap.

        handoff: once it is over, nothing more is submitted. on_error: told why the engine, or the
        grammar's compiler, refused the request.
        """
        self.engine_id = engine_id
        self.fetch: common_pb2.StateFetch | None = None
        """The fetch of the state that another worker has; None: nobody was asked, or it is under
        way."""
        self._context = context
        self._request = request
        self._fetcher = fetcher
        self._handoff = handoff
        self._on_error = on_error

    @property
    def first_token_is_given(self) -> bool:
        """True if an earlier attempt has sampled the first token."""
        return self._request.HasField("first_token")

    def begin(self) -> None:
        """Submit the request, after fetching the state that another worker may have of its prompt.

        A fetch that fails is ignored: the engine then computes that part of the prompt.
        """
        at, returns = self._request.state_at, self._context.config.state_return
        if at.tokens and returns is not StateReturn.OFF:
            begins = tuple(self._request.prompt_ids[: at.tokens])
            prefix = SaltedPrefix(begins, self._request.cache_salt)
            by_cost = returns is StateReturn.AUTO
            fetching = self._fetcher.start(at.worker, prefix, by_cost=by_cost)
            began_s = time.monotonic()
            fetching.add_done_callback(lambda done: self._fetched(done, began_s))
        else:
            self._submit()

    def destined(self) -> None:
        """Tell the engine that the state has a destination, so it no longer counts as waiting."""
        self._context.port.post(
            lambda engine: engine.destined(self.engine_id), f"destined of {self.engine_id}"
        )

    def release(self) -> None:
        """Give the engine back the memory of a state that has been written."""
        self._context.port.post(
            lambda engine: engine.release(self.engine_id), f"release of {self.engine_id}"
        )

    def cancel(self, reason: str) -> None:
        """End the request in the engine and free its memory. No effect once it is released."""
        self._context.port.post(
            lambda engine: engine.cancel(self.engine_id, reason), f"cancel of {self.engine_id}"
        )

    def _fetched(self, fetching: "asyncio.Task[Outcome]", began_s: float) -> None:
        if not fetching.cancelled():  # `start` says that it does not raise
            at = self._request.state_at
            self.fetch = common_pb2.StateFetch(
                source=at.worker.worker_id,
                tokens=at.tokens,
                outcome=fetching.result().value,
                took_us=round((time.monotonic() - began_s) * 1e6),
            )
        self._submit()

    def _submit(self) -> None:
        if self._handoff.over_for_sender:
            return
        try:
            spec = self._spec()
        except RequestError as error:
            self._on_error(error)
            return
        self._context.grammars.compile(
            spec.sampling.grammar, lambda grammar: self._queue(spec, grammar), self._on_error
        )

    def _queue(self, spec: RequestSpec, grammar: CompiledGrammar | None) -> None:
        if self._handoff.over_for_sender:
            return
        self._context.port.request(
            lambda engine: engine.submit(spec, grammar), lambda _: None, self._on_error
        )

    def _spec(self) -> RequestSpec:
        """Build the engine's request. Raise RequestError for a bad sampling parameter."""
        given = self.first_token_is_given
        return RequestSpec(
            self.engine_id,
            tuple(self._request.prompt_ids),
            _GIVEN if given else sampling_from_proto(self._request.sampling),
            (self._request.first_token,) if given else (),
            hold=True,
            priority=self._request.priority,
            cache_salt=self._request.cache_salt,
            junctions=tuple(self._request.junctions),
        )
