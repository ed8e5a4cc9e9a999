"""The results of reading a large body's prompts, made before the server sees the body."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from baton.api.echo import Echo
from baton.text.reasoning import ReasoningState


@dataclass(frozen=True)
class Prepared:
    """Set by the process that parsed the body, which then left the prompts out."""

    prompts: "tuple[array[int], ...]" = ()  # the token ids of each prompt, cut as the body asks
    thinking: ReasoningState = ReasoningState.FREE  # the reasoning behind the only prompt
    echoes: tuple[Echo, ...] = ()  # of each prompt of a completion
    prediction: Sequence[int] = ()  # the token ids of what the client expects the answer to be
    reply: bytes = b""  # the whole JSON of the answer, where no model is asked
