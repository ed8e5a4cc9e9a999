"""The only ways to start work beside other work, on an event loop or on threads.

Each of them says who hears of a failure, so that no work dies while its process goes on as if
nothing had happened. `tests/test_supervised_layout.py` forbids the calls of asyncio, threading
and concurrent.futures that start work anywhere else.

| way | for | a failure |
|---|---|---|
| `spawn` | a task that runs beside its maker | the `OnFailure` that its maker has chosen |
| `child` | a task that its maker awaits | is raised where the maker awaits it |
| `thread` | a thread that runs beside its maker | the `OnFailure` that its maker has chosen |
| `child_thread` | a thread of its maker | is told to a callback of the maker |
| `submit` | a call on the thread of a pool | is raised by the result |
| `call_on` | a coroutine on the loop of another thread | is raised in the caller |
"""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, ParamSpec, TypeVar

from baton.core.errors import BatonError, InvariantError, StoppedError
from baton.core.thread_name import show_name

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 10.0
"""The pauses before a work is started anew: the first, and twice the last up to this one. A work
that ran for longer than this pauses for the first again."""
LAST_WORDS_S = 1.0
"""The time that those who are told of the end have, all together."""
CLOSE_S = 5.0
"""The time that cancelled works have to end."""

AsyncWork = Callable[[], Coroutine[Any, Any, None]]
Told = Callable[[Exception], None]
LastWords = Callable[[StoppedError], Awaitable[None]]


class OnFailure(Enum):
    """The consequence of a work's failure. Its maker chooses it, and says why where it does."""

    END = "end"
    """The process stops serving and ends: it cannot do without the work, and whoever started the
    process starts it again."""
    ANEW = "anew"
    """The work is started again after a pause: nothing of it is lost but time."""


@dataclass(eq=False)
class SupervisedWork:
    """One work that runs."""

    name: str  # unique among those that run
    on_failure: OnFailure
    task: asyncio.Task[None] | None = None  # None: it runs on a thread, which its maker ends
    starts: int = 0


class ProcessSupervisor:
    """The owner of all works that run beside their makers in one process.

    The top of the process makes one and hands it down. Methods may be called on any thread, but
    for `when_ending`, `ended` and `close`, which belong to the event loop.
    """

    def __init__(self, on_end: Callable[[str], None] = lambda reason: None) -> None:
        """on_end: ends the process. It is called once, with the reason, when all others know: on
        the event loop, or on the failed thread where the process has no loop."""
        self._on_end = on_end
        self._lock = threading.Lock()
        self._works: dict[str, SupervisedWork] = {}
        self._reason = ""
        self._last_words: list[LastWords] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        self.closed = threading.Event()
        """Set once nothing is started anew any more."""

    @property
    def reason(self) -> str:
        """Return why the process ends; empty while it serves."""
        return self._reason

    @property
    def works(self) -> tuple[SupervisedWork, ...]:
        """Return what runs now, by name."""
        with self._lock:
            return tuple(self._works[name] for name in sorted(self._works))

    def when_ending(self, tell: LastWords) -> None:
        """Call `tell` with the reason when the process has to end, while it can still speak to
        others. The first to ask is the first to be told."""
        self.use_running_loop()
        self._last_words.append(tell)

    async def ended(self) -> StoppedError:
        """Wait until the process has to end and everybody knows. Return the reason."""
        await self._told.wait()
        return StoppedError(self._reason)

    def end(self, name: str, error: Exception) -> None:
        """Let the process end, because it has lost a work that it cannot do without.

        Idempotent: the first reason counts.
        """
        reason = describe(name, error)
        with self._lock:
            first, self._reason = not self._reason, self._reason or reason
        # The first place to look: a process may end before anybody can ask it.
        log.critical("%s; this process ends", reason, exc_info=_shown(error))
        if not first:
            return
        if self._loop is None:
            self._on_end(reason)
        else:
            self._loop.call_soon_threadsafe(self._begin_to_end)

    def loop_failed(self, error: Exception) -> None:
        """End the process at once, because its event loop has ended: nobody can be told."""
        reason = self._reason = describe("event loop", error)
        log.critical("%s; this process ends", reason, exc_info=_shown(error))
        self._on_end(reason)

    async def close(self, deadline_s: float = CLOSE_S) -> None:
        """Cancel all tasks and wait until they have ended, `deadline_s` at most. Threads end with
        those who made them."""
        self.closed.set()
        tasks = [work.task for work in self.works if work.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline_s)
            for work in self.works:
                if work.task in late:
                    log.error("%s did not end within %g s", work.name, deadline_s)

    def use_running_loop(self) -> None:
        """Tell the end on the loop that runs now."""
        self._loop = asyncio.get_running_loop()

    def add(self, name: str, on_failure: OnFailure) -> SupervisedWork:
        """Enter a work into the list, under a name of its own."""
        with self._lock:
            names = itertools.chain([name], (f"{name} #{i}" for i in itertools.count(2)))
            free = next(each for each in names if each not in self._works)
            work = self._works[free] = SupervisedWork(free, on_failure)
        return work

    def remove(self, work: SupervisedWork) -> None:
        """Take a work that is over out of the list."""
        with self._lock:
            del self._works[work.name]

    def _begin_to_end(self) -> None:
        self._ending = asyncio.create_task(self._tell_all())

    async def _tell_all(self) -> None:
        error = StoppedError(self._reason)
        until = time.monotonic() + LAST_WORDS_S
        for tell in self._last_words:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await tell(error)
            except Exception:  # the others must be told all the same, and the process must end
                log.exception("the end could not be told")
        self._told.set()
        self._on_end(self._reason)


def describe(name: str, error: Exception) -> str:
    """Say that a work has ended, and why."""
    return f"{name} ended: {type(error).__name__}: {error}"


def spawn(
    work: AsyncWork,
    owner: ProcessSupervisor,
    on_failure: OnFailure,
    name: str,
    *,
    may_return: bool = False,
) -> asyncio.Task[None]:
    """Run `work()` beside the caller, until it is cancelled. A failure does what `on_failure` says.

    name: what stands in the log and in the owner's list. may_return: its return is no failure.
    """
    owner.use_running_loop()
    entry = owner.add(name, on_failure)
    entry.task = asyncio.create_task(_supervised(work, owner, entry, may_return), name=entry.name)
    entry.task.add_done_callback(lambda _: owner.remove(entry))
    return entry.task


def child(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run `work` as a task. The caller awaits it, or reads its result once it is done: a failure
    is told nowhere else."""
    return asyncio.create_task(work)


def thread(
    work: Callable[[], None],
    owner: ProcessSupervisor,
    on_failure: OnFailure,
    name: str,
    *,
    may_return: bool = False,
) -> threading.Thread:
    """Call `work` on a daemon thread that runs beside the caller, who ends it. A failure does what
    `on_failure` says.

    may_return: its return is no failure. That of a work whose owner was closed never is.
    """
    entry = owner.add(name, on_failure)
    started = threading.Thread(
        target=_supervised_thread, args=(work, owner, entry, may_return), name=name, daemon=True
    )
    started.start()
    return started


def child_thread(work: Callable[[], None], name: str, failed: Told) -> threading.Thread:
    """Call `work` on a daemon thread, and `failed`, on that thread, with what it raises."""

    def run() -> None:
        show_name(name)
        try:
            work()
        except Exception as error:  # the thread's last line: nobody above could catch it
            failed(error)

    started = threading.Thread(target=run, name=name, daemon=True)
    started.start()
    return started


def submit(pool: Executor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run `work` on a thread of a pool. The caller reads the result: a failure is told nowhere
    else."""
    return pool.submit(work, *args, **kwargs)


def call_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Run `work` on the loop of another thread and return its result. Raises what it raises, and
    TimeoutError, which leaves it running."""
    return asyncio.run_coroutine_threadsafe(work, loop).result(timeout_s)


class _Pauses:
    """The pauses before the new starts of one work."""

    def __init__(self, work: SupervisedWork) -> None:
        self._work = work
        self._pause_s = FIRST_PAUSE_S
        self._began_s = time.monotonic()

    def begin(self) -> None:
        """Note that the work starts."""
        self._work.starts += 1
        self._began_s = time.monotonic()

    def after(self, error: Exception) -> float:
        """Log a failure. Return the seconds until the work starts again."""
        if time.monotonic() - self._began_s > LAST_PAUSE_S:
            self._pause_s = FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LAST_PAUSE_S)
        log.error(
            "%s; it is started again in %g s, failure %d of this process",
            describe(self._work.name, error),
            pause_s,
            self._work.starts,
            exc_info=_shown(error),
        )
        return pause_s


async def _supervised(
    work: AsyncWork, owner: ProcessSupervisor, entry: SupervisedWork, may_return: bool
) -> None:
    pauses = _Pauses(entry)
    while True:
        pauses.begin()
        failure = await _failure_of(work, may_return)
        if failure is None:
            return
        if entry.on_failure is OnFailure.END:
            owner.end(entry.name, failure)
            return
        if owner.reason or owner.closed.is_set():
            return  # most works fail when the process ends: the first reason is logged
        await asyncio.sleep(pauses.after(failure))


async def _failure_of(work: AsyncWork, may_return: bool) -> Exception | None:
    """Run a work. Return its failure, or None where its return is none. Raises CancelledError if
    this task was cancelled, whatever the work makes of it."""
    this = asyncio.current_task()
    assert this is not None
    failure: Exception | None
    try:
        await work()
        failure = None if may_return else _returned()
    except asyncio.CancelledError:  # of this task, or of something that the work awaits
        failure = InvariantError("it awaited something that was cancelled")
    except Exception as error:  # that is what this function is for
        failure = error
    if this.cancelling():
        raise asyncio.CancelledError
    return failure


def _supervised_thread(
    work: Callable[[], None], owner: ProcessSupervisor, entry: SupervisedWork, may_return: bool
) -> None:
    show_name(entry.name)
    pauses = _Pauses(entry)
    try:
        while True:
            pauses.begin()
            try:
                work()
                failure: Exception | None = None if may_return else _returned()
            except Exception as error:  # the thread's last line: nobody above could catch it
                failure = error
            if failure is None or owner.closed.is_set():
                return
            if entry.on_failure is OnFailure.END:
                owner.end(entry.name, failure)
                return
            if owner.reason or owner.closed.wait(pauses.after(failure)):
                return
    finally:
        owner.remove(entry)


def _shown(error: Exception) -> Exception | None:
    """Return the error whose traceback is logged: one that nobody raised on purpose."""
    return None if isinstance(error, BatonError) else error


def _returned() -> InvariantError:
    return InvariantError("it has returned, and should run until it is ended")
