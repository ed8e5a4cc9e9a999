"""Waiting in tests for what must come: by looking again and again, up to a deadline.

A test never sleeps a fixed time for something to happen. A deadline is of what hangs; where all is
well nobody waits for it, so it may be long.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 240.0
LOOK_S = 0.005  # between two looks that cost nothing
ASK_S = 0.05  # between two looks that ask another process


async def until(
    look: Callable[[], T | None], what: Callable[[], object] = str, deadline_s: float = DEADLINE_S
) -> T:
    """Look on the event loop's thread until `look` returns something true, and return that.

    what: describes what there is instead, in case that does not come. Raises AssertionError then.
    """
    ends = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < ends, f"not within {deadline_s:g} s; {what()}"
        await asyncio.sleep(LOOK_S)
    return found


async def until_asked(
    ask: Callable[[], T | None], what: Callable[[], object] = str, deadline_s: float = DEADLINE_S
) -> T:
    """Do as `until` does with a question that blocks: on another thread, so that the tasks of this
    one go on meanwhile.
    """
    ends = time.monotonic() + deadline_s
    while not (found := await asyncio.to_thread(ask)):
        assert time.monotonic() < ends, f"not within {deadline_s:g} s; {what()}"
        await asyncio.sleep(ASK_S)
    return found


async def until_answered(
    ask: Callable[[], Awaitable[T | None]],
    what: Callable[[], object] = str,
    deadline_s: float = DEADLINE_S,
) -> T:
    """Do as `until` does with a question that is awaited."""
    ends = time.monotonic() + deadline_s
    while not (found := await ask()):
        assert time.monotonic() < ends, f"not within {deadline_s:g} s; {what()}"
        await asyncio.sleep(LOOK_S)
    return found


def wait_until(
    ask: Callable[[], T | None], what: Callable[[], object] = str, deadline_s: float = DEADLINE_S
) -> T:
    """Do as `until` does in a test without an event loop: the thread sleeps between two looks."""
    ends = time.monotonic() + deadline_s
    while not (found := ask()):
        assert time.monotonic() < ends, f"not within {deadline_s:g} s; {what()}"
        time.sleep(ASK_S)
    return found
