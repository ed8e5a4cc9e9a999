"""The part of one prompt that the engine has computed, and that the writer has taken."""

import asyncio

from baton.core.state_ref import StateRef
from baton.engine.request.request import Parked
from baton.engine.step.layer_progress import LayersComputed
from baton.transfer.memory.regions import Memory
from baton.transfer.memory.segments import Segment
from baton.transfer.outflow import Outflow


class PromptState:
    """The KV and the recurrent state of one prompt in the engine's memory, as they are computed.

    The engine's events add to it; the writer takes segments from it and waits for more. Nothing is
    copied: what is computed stays in the engine's own pages until the writer posts it.
    """

    def __init__(self, memory: Memory, tokens: int) -> None:
        """tokens: length of the prompt."""
        self._outflow = Outflow(memory.slots, memory.pages, tokens)
        self._parked_state: Parked | None = None
        self._layers_ended_s: float | None = None
        self._complete = False
        self._changed = asyncio.Event()

    @property
    def holder(self) -> StateRef:
        """The slot and the pages that the prompt's state lies in."""
        assert self._parked_state is not None
        return self._parked_state.state

    @property
    def cached_state(self) -> int:
        """Prompt tokens whose state this engine's prefix cache keeps."""
        return self._parked_state.cached_state if self._parked_state else 0

    @property
    def layers_ended_s(self) -> float:
        """The time at which the last layer of the prompt was computed, by `time.monotonic`."""
        assert self._layers_ended_s is not None
        return self._layers_ended_s

    def on_parked_state(self, parked_state: Parked) -> None:
        """Note where the state lies, and how many tokens are computed in all layers."""
        self._parked_state = parked_state
        self._outflow.computed(parked_state.state.tokens)
        self._changed.set()

    def on_layers(self, computed: LayersComputed, at_s: float) -> None:
        """Note how many layers of the last chunk are computed. Its step goes on."""
        self._parked_state = computed.parked_state
        self._outflow.layers(computed.start, computed.recurrent, computed.attention)
        if computed.last:
            self._layers_ended_s = at_s
        self._changed.set()

    def on_complete(self, at_s: float) -> None:
        """Note that the whole prompt is computed, and its first token known.

        at_s: stands for the last layer's end where the engine has not reported its layers.
        """
        self._complete = True
        self._outflow.held()
        if self._layers_ended_s is None:
            self._layers_ended_s = at_s
        self._changed.set()

    def begin(self, kv_from: int, segment_bytes: int) -> None:
        """Start the writing. kv_from: the rank has the KV of the tokens below it already."""
        self._outflow.begin(kv_from, segment_bytes)

    @property
    def all_taken(self) -> bool:
        """Return True when the writer has taken everything."""
        return self._outflow.over

    async def take(self) -> list[Segment]:
        """Wait for segments that are computed and not yet taken. Empty when all have been taken.

        Waits for this worker's own engine alone: if that fails, so does the hand-off.
        """
        while not self._outflow.over:
            if segments := self._outflow.take():
                return segments
            if not self._outflow.over:
                await self._change()
        return []

    async def completed(self) -> None:
        """Wait until the whole prompt is computed and its first token known."""
        while not self._complete:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
