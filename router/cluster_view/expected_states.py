"""The states that prompts will leave in prefix caches, from their placement to the report."""

from collections.abc import Collection

from baton.router.cluster_view.prefix_lengths import PrefixLengths
from baton.router.cluster_view.worker_table import Change, Worker, WorkerTable
from baton.text.prefix_digest import PromptPrefixes

_Start = tuple[str, int]  # a worker's id and incarnation
Leaves = tuple[tuple[int, int], ...]
"""(tokens, digest) of prefixes."""


def leaves(prompt: PromptPrefixes, grid: int, junctions: Collection[int] = ()) -> Leaves:
    """Return the prefixes of a prompt whose states it leaves in the cache of the worker that
    computes it: the deepest on the grid, of a prompt that ends there the one before too, and those
    at `junctions`.

    grid: tokens; 0: the worker keeps no states.
    """
    last = len(prompt) // grid * grid if grid else 0
    depths = {last, *junctions} if last < len(prompt) else {last - grid, last, *junctions}
    rising = sorted(depths - {0})
    return tuple(zip(rising, prompt.digests(rising), strict=True))


class Expected:
    """The states that one placed prompt will leave."""

    def __init__(self, states: "ExpectedStates", worker: Worker, will_leave: Leaves) -> None:
        self.start = _start(worker)
        self.will_leave = will_leave
        self._states = states

    def made(self) -> None:
        """Note that the prompt is computed: the worker's next report has what it left."""
        self._states.settle(self)

    def drop(self) -> None:
        """Note that the prompt will not be computed there."""
        self._states.remove(self)


class ExpectedStates:
    """The states that workers will have once they have computed what was placed on them.

    A prompt that shares such a prefix and goes to the same worker waits behind the one that makes
    it, and finds it.
    """

    def __init__(self, table: WorkerTable, lengths: PrefixLengths) -> None:
        """lengths: those of expected prefixes are added to it; it may have others too."""
        self._by_digest: dict[int, dict[_Start, int]] = {}
        self._lengths = lengths
        self._settling: dict[_Start, list[Expected]] = {}  # until the next report
        table.subscribe(self._on_change)

    def __len__(self) -> int:
        """Return the number of prefixes that are expected somewhere."""
        return len(self._by_digest)

    def expect(self, worker: Worker, will_leave: Leaves) -> Expected:
        """Expect `will_leave` on `worker` until its report after `made`, or until `drop`."""
        expected = Expected(self, worker, will_leave)
        for depth, digest in will_leave:
            starts = self._by_digest.get(digest)
            if starts is None:
                self._by_digest[digest] = {expected.start: 1}
            else:
                starts[expected.start] = starts.get(expected.start, 0) + 1
            self._lengths.add(depth)
        return expected

    def find(self, prompt: PromptPrefixes) -> dict[_Start, int]:
        """Return the length of the longest expected prefix that leaves a token to compute, by
        worker id and incarnation.
        """
        size = len(prompt)
        expected = self._by_digest
        found: dict[_Start, int] = {}
        for length, digest in prompt.among(self._lengths.below(size), expected.keys()):
            if length < size:
                found |= dict.fromkeys(expected[digest], length)
        return found

    def heard(self, worker: Worker) -> None:
        """Forget what `worker` was expected to have by now: it has reported."""
        for expected in self._settling.pop(_start(worker), ()):
            self.remove(expected)

    def settle(self, expected: Expected) -> None:
        """Keep what is expected until the worker's next report."""
        self._settling.setdefault(expected.start, []).append(expected)

    def remove(self, expected: Expected) -> None:
        """Forget what one prompt will leave."""
        for depth, digest in expected.will_leave:
            starts = self._by_digest[digest]
            starts[expected.start] -= 1
            if not starts[expected.start]:
                del starts[expected.start]
            if not starts:
                del self._by_digest[digest]
            self._lengths.remove(depth)

    def _on_change(self, change: Change) -> None:
        if change.after is None and change.before is not None:
            self.heard(change.before)


def _start(worker: Worker) -> _Start:
    return worker.worker_id, worker.identity.incarnation
