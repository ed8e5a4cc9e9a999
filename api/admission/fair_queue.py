"""The order of requests that wait, with a fair share of the tokens for each API key.

Each key has a count of the tokens that it was served, divided by its share, and the key with the
lowest count is next. A key that comes back from a pause starts at the count of the present, so that
nobody saves up or owes. (Start-time fair queueing, Goyal et al. 1996; by tokens as in "Fairness in
Serving Large Language Models", Sheng et al. 2024.)
"""

from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from operator import attrgetter
from typing import NamedTuple

from baton.core.turns import PASSED_A_STEP, Turn

KeyName = str | None
"""The name of an API key. All requests without one have the same share."""
_by_turn = attrgetter("turn")
_by_due = attrgetter("due", "turn")


@dataclass(eq=False)
class Waiting:
    """A request in the queue. Set when it comes."""

    key: KeyName
    turn: Turn  # its place among the requests of its key
    tokens: int  # of prompt and answer, as far as can be told
    prompt_tokens: int
    rank: int | None = None  # the only decode rank that may serve it
    begun: bool = False  # it had its turn before: its key is charged, and it is not displaced
    due: float = inf  # its deadline, on any clock that all have in common
    tried: int | None = None  # `Room.changes` when it was offered to ranks alone; None: never

    @property
    def weight(self) -> int:
        """Return what its priority is worth: it is the same for equal priorities."""
        number = self.turn[1]
        return number - self.turn[0]


class Use(NamedTuple):
    """Requests, and the tokens that they are expected to take."""

    requests: int
    tokens: int


NOTHING = Use(0, 0)


@dataclass
class _Flow:
    """The requests of one key."""

    share: float
    served: float = 0.0  # tokens, divided by the share
    waiting: list[Waiting] = field(default_factory=list)  # by turn
    tokens: int = 0  # of those that wait
    due: int = 0  # of those that wait, how many have a deadline

    def head(self, fits: Callable[[Waiting], bool]) -> Waiting | None:
        """Return the next request for which `fits` is true: the first by turn, or one of the same
        priority that is due earlier and came at most 32 requests later.
        """
        first = next(filter(fits, self.waiting), None)
        if first is None or not self.due:
            return first
        last = first.turn[0] + PASSED_A_STEP
        near = takewhile(lambda each: each.turn[0] < last, self.waiting)
        equal = (each for each in near if each.weight == first.weight and fits(each))
        return min(equal, key=_by_due)


class FairQueue:
    """The requests that wait. It has no clock and no tasks."""

    def __init__(self, share_of: Callable[[KeyName], float]) -> None:
        """share_of: returns a key's share, above 0, as it is now."""
        self._share_of = share_of
        self._flows: dict[KeyName, _Flow] = {}
        self._present = 0.0  # the lowest count of any key, when a request was last served
        self._count = 0
        self.tokens = 0
        """Those of all requests here."""

    def __len__(self) -> int:
        return self._count

    def add(self, waiting: Waiting) -> None:
        flow = self._flow_of(waiting.key)
        insort(flow.waiting, waiting, key=_by_turn)
        flow.due += waiting.due < inf
        self._change(flow, 1, waiting.tokens)

    def pass_by(self, waiting: Waiting) -> None:
        """Count the tokens of a request as served that comes while nobody waits, and need not.

        It does what `add` and `pop` do then.
        """
        flow = self._flow_of(waiting.key)
        self._present = flow.served
        flow.served += waiting.tokens / flow.share

    def remove(self, waiting: Waiting) -> None:
        """Forget a request, which costs its key nothing. It must be here."""
        flow = self._flows[waiting.key]
        flow.waiting.remove(waiting)
        flow.due -= waiting.due < inf
        self._change(flow, -1, -waiting.tokens)

    def pop(
        self, fits: Callable[[Waiting], bool], may: Callable[[KeyName], bool] = lambda key: True
    ) -> Waiting | None:
        """Take out the next request for which `fits` is true, and count its tokens as served.

        may: False for a key of which no request is to be taken.
        """
        heads = [
            (flow.served, head.turn, head)
            for key, flow in self._flows.items()
            if flow.waiting and may(key) and (head := flow.head(fits)) is not None
        ]
        if not heads:
            return None
        _, _, chosen = min(heads, key=lambda each: each[:2])
        self.remove(chosen)
        flow = self._flows[chosen.key]
        self._present = max(self._present, flow.served)
        if not chosen.begun:
            flow.served += chosen.tokens / flow.share
        return chosen

    def correct(self, key: KeyName, tokens: int) -> None:
        """Add to the served tokens of a key: the difference to what was expected of a request."""
        flow = self._flows[key]
        flow.served += tokens / flow.share

    def tokens_before(self, key: KeyName) -> float:
        """Return the tokens that are served before a new request of `key`, at most."""
        flow = self._flows.get(key)
        own = flow.tokens if flow is not None else 0
        share = self._share_of(key)
        shares = share + sum(
            each.share for name, each in self._flows.items() if each.waiting and name != key
        )
        return min(float(self.tokens), own * shares / share)

    def victims(
        self, newcomer: Waiting, requests: int, tokens: int, under_way: Mapping[KeyName, Use]
    ) -> list[Waiting] | None:
        """Return the requests that must leave the queue for `newcomer` to come in.

        requests, tokens: how many must leave; each is 0 or less where there is room.
        under_way: what each key has besides its requests here. Those that must leave are the last
        of the keys that have most in all, for their share. None if the newcomer's own key has most.
        """
        found: list[Waiting] = []
        left = {
            key: [each for each in flow.waiting if not each.begun]
            for key, flow in self._flows.items()
            if key != newcomer.key
        }
        own = self._flows.get(newcomer.key)
        mine = [*own.waiting, newcomer] if own is not None else [newcomer]
        while requests > len(found) or tokens > sum(each.tokens for each in found):
            by_count = requests > len(found)

            def use(key: KeyName, held: list[Waiting], by_count: bool = by_count) -> float:
                more = under_way.get(key, NOTHING)
                amount = len(held) + more.requests
                if not by_count:
                    amount = sum(each.tokens for each in held) + more.tokens
                return amount / self._share_of(key)

            uses = {key: use(key, held) for key, held in left.items() if held}
            most = max(uses, key=lambda key: uses[key], default=newcomer.key)
            if most == newcomer.key or uses[most] <= use(newcomer.key, mine):
                return None
            found.append(left[most].pop())
        return found

    def _flow_of(self, key: KeyName) -> _Flow:
        """Return the flow of a key that a request is added to; its first begins at the present."""
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = _Flow(self._share_of(key))
        if not flow.waiting:
            flow.share = self._share_of(key)
            flow.served = max(flow.served, self._present)
        return flow

    def _change(self, flow: _Flow, requests: int, tokens: int) -> None:
        flow.tokens += tokens
        self._count += requests
        self.tokens += tokens
