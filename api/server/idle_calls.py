"""gRPC calls of clients that ask for nothing now, and which one gives way to a new one."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class IdleCall:
    """One call."""

    holders: Collection[str]  # the address and the key that it counts for
    deadline: asyncio.Timeout  # ends it; moved to now when the call gives way
    gave_way: bool = False


class IdleCalls:
    """Calls whose message has not come, or calls that wait for news.

    They cost a server little, but somebody may open them without end. A new one is never refused:
    at a limit it takes the place of the one that has been idle longest, of its own address or key
    where their limit is reached, else of the one that has the most.
    """

    def __init__(self, most: int, most_of_holder: int) -> None:
        """most: calls in all. most_of_holder: calls of one address, and of one key."""
        self._most = most
        self._most_of_holder = most_of_holder
        self._calls: set[IdleCall] = set()
        self._of: dict[str, OrderedDict[IdleCall, None]] = {}  # by holder, longest idle first

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def place(self, holders: Collection[str], deadline: asyncio.Timeout) -> Iterator[IdleCall]:
        """Count a call. deadline: it encloses the call and ends it where it gives way."""
        for each in holders:
            if len(self._of.get(each, ())) >= self._most_of_holder:
                self._displace(each)
        if len(self._calls) >= self._most:
            self._displace(max(self._of, key=lambda holder: len(self._of[holder])))
        call = IdleCall(holders, deadline)
        self._calls.add(call)
        for each in holders:
            self._of.setdefault(each, OrderedDict())[call] = None
        try:
            yield call
        finally:
            self._remove(call)

    def touch(self, call: IdleCall) -> None:
        """Record that something was said on a call, so that others are idle longer."""
        if call in self._calls:
            for each in call.holders:
                self._of[each].move_to_end(call)

    def _displace(self, holder: str) -> None:
        """End the call that this holder has had idle longest."""
        call = next(iter(self._of[holder]))
        call.gave_way = True
        self._remove(call)
        if not call.deadline.expired():
            call.deadline.reschedule(asyncio.get_running_loop().time())

    def _remove(self, call: IdleCall) -> None:
        """Count a call no more. Idempotent."""
        if call not in self._calls:
            return
        self._calls.remove(call)
        for each in call.holders:
            del self._of[each][call]
            if not self._of[each]:
                del self._of[each]
