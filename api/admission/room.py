"""The room that workers have for further requests."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

CHUNKS_AHEAD = 2
"""Steps' worth of prompt tokens that each prefill worker is given at once."""
DECODES_AHEAD = 2
"""Requests for each prefill worker that the decode ranks are given beyond what they run at once, so
that the next one is computed when a place is free."""


class RankRoom(NamedTuple):
    """The room of decode ranks for prompts that they compute themselves."""

    ranks: int = 0  # that would compute one now
    prompt_tokens: int = 0  # the longest prompt that one of them would compute


_NO_RANKS: Mapping[int, int] = {}


class Room(NamedTuple):
    """The requests that may be sent to the workers now. Made by the `Placer`, for each request: a
    tuple is made in a third of a dataclass's time.
    """

    # Requests that all decode ranks take besides those that they have; None: a role has no worker.
    decode: int | None
    # The same by the number of each rank that can be given requests now.
    by_rank: Mapping[int, int] = _NO_RANKS
    prefill_workers: int = 0
    prompt_tokens: int = 0  # that prefill workers are given at once, those that they have included
    shared_prefills: int = 0  # prefill workers that other routers use too
    # Ranks that would compute a prompt that waits. Returns the same at each call.
    on_ranks: Callable[[], RankRoom] = RankRoom
    changes: int = 0  # counts up with each change of what the router has placed
