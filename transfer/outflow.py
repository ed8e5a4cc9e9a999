"""What of one request's state may leave next, and what has. Pure bookkeeping: no bytes, no waits.

KV leaves chunk by chunk. Of the last chunk, KV and state leave layer by layer, as layers end; what
all layers have at once leaves for all layers at once, which is fewer segments.
"""

from collections.abc import Iterator

from baton.engine.memory.layout import PageLayout, SlotLayout
from baton.transfer.segments import MESSAGE_BYTES, Segment, cut_kv, cut_state


class Outflow:
    """Facts come in any order that is true of a forward; none is taken back."""

    def __init__(self, slots: SlotLayout, pages: PageLayout, tokens: int) -> None:
        self._slots = slots
        self._pages = pages
        self._tokens = tokens
        self._layers = len(pages.layers)
        self._computed = 0  # tokens whose KV is there in all layers
        self._last_layers = 0  # attention layers that have the KV of all tokens
        self._state = 0  # dense bytes of the state that are final
        self._sent_tokens = 0  # in all layers
        self._sent_layers = 0  # attention layers that left ahead, with the tokens after those
        self._sent_state = 0
        self._limit = MESSAGE_BYTES

    def begin(self, kv_from: int, limit: int) -> None:
        """The receiver has the KV of the tokens below. limit: bytes of a segment."""
        self._sent_tokens = kv_from
        self._limit = limit

    def computed(self, tokens: int) -> None:
        """The KV of the first `tokens` tokens is there."""
        self._computed = max(self._computed, tokens)
        if tokens >= self._tokens:
            self._last_layers = self._layers

    def layers(self, start: int, recurrent: int, attention: int) -> None:
        """The first `recurrent` layers' state is final, and the first `attention` layers have the
        KV of all tokens. Below `start` all have it."""
        self._computed = max(self._computed, start)
        self._last_layers = max(self._last_layers, attention)
        self._state = max(self._state, self._slots.bytes_before(recurrent))

    def held(self) -> None:
        """Everything is there."""
        self.computed(self._tokens)
        self._state = self._slots.state_bytes

    @property
    def over(self) -> bool:
        """All has been taken."""
        return self._sent_tokens >= self._tokens and self._sent_state >= self._slots.state_bytes

    def take(self) -> list[Segment]:
        """What may leave now and was not taken before."""
        if self._last_layers == self._layers and not self._sent_layers:
            self._computed = self._tokens
        return [*self._take_tokens(), *self._take_layers(), *self._take_state()]

    def _take_tokens(self) -> Iterator[Segment]:
        """In all layers at once, unless some have left ahead."""
        if not self._sent_layers and self._sent_tokens < self._computed:
            yield from cut_kv(self._pages, self._sent_tokens, self._computed, self._limit)
            self._sent_tokens = self._computed

    def _take_layers(self) -> Iterator[Segment]:
        """The rest of the tokens, in layers that have them."""
        if self._sent_layers < self._last_layers and self._sent_tokens < self._tokens:
            layers = (self._sent_layers, self._last_layers)
            tokens = (self._sent_tokens, self._tokens)
            yield from cut_kv(self._pages, *tokens, self._limit, layers)
            self._sent_layers = self._last_layers
        if self._sent_layers == self._layers:
            self._sent_tokens = self._tokens

    def _take_state(self) -> Iterator[Segment]:
        yield from cut_state(self._slots, self._limit, start=self._sent_state, end=self._state)
        self._sent_state = self._state
