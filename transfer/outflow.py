"""The parts of a request's state that may leave next, and those that have left. It moves no bytes.

KV leaves chunk by chunk. The KV of the last chunk and the state leave layer by layer, as layers are
computed. Tokens that all layers have leave for all layers at once, which takes fewer segments.
"""

from collections.abc import Iterator

from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.transfer.memory.segments import MESSAGE_BYTES, Segment, cut_kv, cut_state


class Outflow:
    """The progress of one request. Facts arrive in any order that a forward can produce."""

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
        """Begin to send. The receiver has the KV below `kv_from`. limit: bytes of a segment."""
        self._sent_tokens = kv_from
        self._limit = limit

    def computed(self, tokens: int) -> None:
        """Record that the KV of the first `tokens` tokens is computed in all layers."""
        self._computed = max(self._computed, tokens)
        if tokens >= self._tokens:
            self._last_layers = self._layers

    def layers(self, start: int, recurrent: int, attention: int) -> None:
        """Record that the state of the first `recurrent` layers is final, and that the first
        `attention` layers have the KV of all tokens. All layers have the KV below `start`."""
        self._computed = max(self._computed, start)
        self._last_layers = max(self._last_layers, attention)
        self._state = max(self._state, self._slots.bytes_before(recurrent))

    def held(self) -> None:
        """Record that all KV and the whole state are computed."""
        self.computed(self._tokens)
        self._state = self._slots.state_bytes

    @property
    def over(self) -> bool:
        """Return True when everything has been taken."""
        return self._sent_tokens >= self._tokens and self._sent_state >= self._slots.state_bytes

    def take(self) -> list[Segment]:
        """Return the segments that may leave now and were not taken before."""
        if self._last_layers == self._layers and not self._sent_layers:
            self._computed = self._tokens
        return [*self._take_tokens(), *self._take_layers(), *self._take_state()]

    def _take_tokens(self) -> Iterator[Segment]:
        """Take tokens that all layers have, unless some layers have left ahead."""
        if not self._sent_layers and self._sent_tokens < self._computed:
            yield from cut_kv(self._pages, self._sent_tokens, self._computed, self._limit)
            self._sent_tokens = self._computed

    def _take_layers(self) -> Iterator[Segment]:
        """Take the remaining tokens of the layers that have them."""
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
