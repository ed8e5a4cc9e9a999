"""The contexts that workers tell, and which of them a cluster can have."""

from collections.abc import Callable

from baton.core.errors import RequestError

LEAST_CONTEXT = 8
"""The shortest context in tokens. A cluster's is that of the worker with the shortest one."""
PART_OF_OTHERS = 8
"""A context below one part of so many of the usual one is a fault, not a choice."""
SET_ASIDE_S = 30.0
"""A refused worker asks again every two seconds; one that has not asked for so long is gone."""


class Contexts:
    """The longest sequence of each worker, in tokens.

    All workers have a voice, those that were set aside too: who comes first decides nothing. Most
    of them decide what is usual, and of two halves the one with the longer contexts: a context that
    is too long harms nobody, one that is too short is everybody's.
    """

    def __init__(self, clock: Callable[[], float], own: int) -> None:
        """own: the model's context. A worker that tells more has the voice of one that tells it."""
        self._clock = clock
        self._own = own
        self._told: dict[str, int] = {}
        self._aside: dict[str, tuple[int, float]] = {}  # with the time at which each asked last
        self._usual: int | None = None  # None: to be found again

    def check(self, worker_id: str, tokens: int) -> None:
        """Note what a worker tells. Raises RequestError if others tell much more.

        tokens: 0 if it does not know yet.
        """
        if self._told.get(worker_id, 0) != tokens or worker_id in self._aside:
            self._aside.pop(worker_id, None)
            self._told[worker_id] = tokens
            self._usual = None
        if not tokens or tokens >= self.least:
            return
        del self._told[worker_id]
        self._aside[worker_id] = (tokens, self._clock())
        raise RequestError(
            f"worker {worker_id} is set aside: its context of {tokens:,} tokens would be the whole "
            f"cluster's, where most workers have {self.usual:,}; give all the same --max-model-len",
            expected=f"max_model_len of at least {self.least}",
            actual=str(tokens),
        )

    def forget(self, worker_id: str) -> None:
        """Forget a worker that has gone. One that was set aside has its voice for `SET_ASIDE_S`."""
        if self._told.pop(worker_id, None) is not None:
            self._usual = None

    @property
    def usual(self) -> int:
        """Return the context that most workers have, or more than that; 0 where none has told."""
        self._forget_silent()
        if self._usual is None:
            every = [*self._told.values(), *(tokens for tokens, _ in self._aside.values())]
            ordered = sorted(min(tokens, self._own) for tokens in every if tokens)
            self._usual = ordered[len(ordered) // 2] if ordered else 0
        return self._usual

    @property
    def least(self) -> int:
        """Return the shortest context with which a worker is taken on."""
        return max(LEAST_CONTEXT, -(-self.usual // PART_OF_OTHERS))

    def of_all(self) -> int:
        """Return the tokens that every worker has room for; 0 where none has told.

        Workers that are about to be set aside do not count.
        """
        least = self.least
        return min((tokens for tokens in self._told.values() if tokens >= least), default=0)

    def _forget_silent(self) -> None:
        since = self._clock() - SET_ASIDE_S
        silent = [name for name, (_, when) in self._aside.items() if when < since]
        for name in silent:
            del self._aside[name]
            self._usual = None
