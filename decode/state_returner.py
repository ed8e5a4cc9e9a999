"""Return of state to prefill workers, and fetching of the snapshots that they keep."""

from baton.decode.prefill_link import PrefillLink
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.proto import common_pb2, handoff_pb2
from baton.text.prefix_index import PrefixIndex
from baton.worker.context import WorkerContext
from baton.worker.prefix_fetcher import PrefixFetcher
from baton.worker.state_options import SendSnapshots, StateReturn


class StateReturner:
    """The rank's part in `--state-return` and `--send-snapshots`.

    No request waits for it or fails because of it.
    """

    def __init__(self, context: WorkerContext, fetcher: PrefixFetcher) -> None:
        self._returns = context.config.state_return
        self._snapshots = context.config.send_snapshots
        self._identity = context.hello.worker
        self._fetcher = fetcher
        self._index = PrefixIndex[None]()  # of the states in this rank's cache

    def state_at(self, prompt: SaltedPrefix, routers: common_pb2.StateAt) -> common_pb2.StateAt:
        """Return who has the state after the most tokens of this prompt.

        It is this rank or the worker that the router names in `routers`. 0 tokens: nobody has any.
        """
        if self._returns is StateReturn.OFF:
            return common_pb2.StateAt()
        mine = self._index.held(prompt.token_ids, prompt.salt).get(None, 0)
        if mine < routers.tokens:
            return routers
        return common_pb2.StateAt(worker=self._identity, tokens=mine)

    def ended(self, kept: SaltedPrefix, link: PrefillLink | None) -> None:
        """Note that an ended request has left the state after `kept` in this rank's cache.

        link: to its prefill worker, which is offered the state if it is returned eagerly.
        """
        if self._returns is StateReturn.OFF or not kept:
            return
        self._index.add(kept.token_ids, None, kept.salt)
        if self._returns is StateReturn.EAGER and link is not None:
            offer = handoff_pb2.StateOffer(token_ids=kept.token_ids, cache_salt=kept.salt)
            link.send(handoff_pb2.DecodeMessage(offer=offer))

    def arrived(self, cached: SaltedPrefix, link: PrefillLink) -> None:
        """Fetch the state after `cached` from the prefill worker that has just handed over.

        cached: the longest part of the prompt whose state its cache keeps.
        """
        if self._snapshots is SendSnapshots.LAST and cached:
            self._fetcher.start(link.peer, cached)
