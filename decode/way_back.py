"""State that goes back to a prefill worker, and snapshots that come along from one."""

from collections.abc import Sequence

from baton.decode.prefill_link import PrefillLink
from baton.proto import common_pb2, handoff_pb2
from baton.text.prefix_book import PrefixBook
from baton.worker.config import SendSnapshots, StateReturn
from baton.worker.context import WorkerContext
from baton.worker.prefix_fetcher import PrefixFetcher


class WayBack:
    """By `--state-return` and `--send-snapshots`. Nothing of it holds up or fails a request."""

    def __init__(self, context: WorkerContext, fetcher: PrefixFetcher) -> None:
        self._returns = context.config.state_return
        self._snapshots = context.config.send_snapshots
        self._identity = context.hello.worker
        self._fetcher = fetcher
        self._book = PrefixBook[None]()  # of what this rank has kept

    def state_at(
        self, prompt_ids: Sequence[int], routers: common_pb2.StateAt
    ) -> common_pb2.StateAt:
        """Who has the deepest state of this prompt: this rank, or whom the router names. With no
        tokens: nobody."""
        if self._returns is StateReturn.OFF:
            return common_pb2.StateAt()
        mine = self._book.held(prompt_ids).get(None, 0)
        if mine < routers.tokens:
            return routers
        return common_pb2.StateAt(worker=self._identity, tokens=mine)

    def ended(self, token_ids: Sequence[int], link: PrefillLink | None) -> None:
        """A request has left the state after these tokens in the cache. link: to the prefill worker
        that it came from."""
        if self._returns is StateReturn.OFF or not token_ids:
            return
        self._book.add(token_ids, None)
        if self._returns is StateReturn.EAGER and link is not None:
            offer = handoff_pb2.StateOffer(token_ids=token_ids)
            link.send(handoff_pb2.DecodeMessage(offer=offer))

    def arrived(self, token_ids: Sequence[int], link: PrefillLink) -> None:
        """The prefill worker's cache has the state after these tokens of a prompt that it handed
        over."""
        if self._snapshots is SendSnapshots.LAST and token_ids:
            self._fetcher.start(link.peer, tuple(token_ids))
