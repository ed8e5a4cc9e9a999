"""The progress of a forward through its layers, for the requests that a hand-off waits for.

The state of a layer is final as soon as that layer has run, long before the step's result is known.
It is reported in groups of layers, and only by steps that hold a request's last chunk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from baton.core.state_ref import StateRef
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.request.request import Parked
from baton.engine.step.batch import Row


@dataclass(frozen=True)
class LayersComputed:
    """The progress of a request whose last chunk is being computed: its first `recurrent` recurrent
    layers have the state of the whole prompt, and its first `attention` attention layers have the
    KV of the chunk, tokens [start, parked_state.state.tokens). Below `start` KV is there in all
    layers.
    """

    request_id: str
    start: int
    recurrent: int
    attention: int
    last: bool  # nothing more will be written
    parked_state: Parked


OnLayers = Callable[[Sequence[LayersComputed]], None]
"""Called on the forward's thread, or the stream's: it must be quick and leave the engine alone."""

Mark = Callable[[Callable[[], None]], None]
"""`ForwardStream.mark`."""


@dataclass(frozen=True)
class LayerBytes:
    """The bytes that each layer writes. Made once a model."""

    state: tuple[int, ...]  # bytes of each recurrent layer's state
    kv: tuple[int, ...]  # bytes of one token's KV in each attention layer

    @classmethod
    def of(cls, slots: SlotLayout, pages: PageLayout) -> "LayerBytes":
        recurrent, attention = range(len(slots.layers)), range(len(pages.layers))
        return cls(
            tuple(slots.bytes_before(i + 1) - slots.bytes_before(i) for i in recurrent),
            tuple(pages.bytes_of((i, i + 1)) for i in attention),
        )


class LayerProgress:
    """The progress of one forward. Layers call it in order as they write; the listener is called
    once the stream has come so far.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        layers: LayerBytes,
        mark: Mark,
        tell: OnLayers,
        group_bytes: int,
        *,
        several_ranks: bool = False,
    ) -> None:
        """rows: those whose `held` names a request. group_bytes: of the longest row, reported at
        once. several_ranks: others of the replica may have written less than this one. They have
        as much when they have added up the outputs of a block, so layers are reported then.
        """
        self._rows = rows
        self._layers = layers
        self._mark = mark
        self._tell = tell
        self._group_bytes = group_bytes
        self._several_ranks = several_ranks
        self._tokens = max(row.end - row.start for row in rows)
        self._untold = 0  # bytes, of the longest row
        self._recurrent = 0
        self._attention = 0

    def state_written(self, layer: int) -> None:
        """Note that recurrent layer `layer` has written the state of every row."""
        self._recurrent = layer + 1
        self._grown(self._layers.state[layer])

    def kv_written(self, layer: int) -> None:
        """Note that attention layer `layer` has written the KV of every row."""
        self._attention = layer + 1
        self._grown(self._layers.kv[layer] * self._tokens)

    def block_ended(self) -> None:
        """Note that a block has ended on all ranks, with its layers' writes."""
        if self._several_ranks:
            self._announce_group()

    def all_written(self) -> None:
        """Note that the remaining layers write nothing."""
        self._recurrent, self._attention = len(self._layers.state), len(self._layers.kv)
        self._announce(last=True)

    def _grown(self, nbytes: int) -> None:
        self._untold += nbytes
        if not self._several_ranks:
            self._announce_group()

    def _announce_group(self) -> None:
        if self._untold >= self._group_bytes:
            self._announce(last=False)

    def _announce(self, last: bool) -> None:
        self._untold = 0
        computed = [
            LayersComputed(
                row.parks,
                row.start,
                self._recurrent,
                self._attention,
                last,
                Parked(StateRef(row.write_slot, row.parked_pages, row.end)),
            )
            for row in self._rows
        ]
        self._mark(partial(self._tell, computed))
