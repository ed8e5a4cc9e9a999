"""Work beside other work: who hears of its failure, and what that does."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.polling import until

from baton.core import supervised
from baton.core.errors import StoppedError
from baton.core.supervised import (
    OnFailure,
    ProcessSupervisor,
    call_on,
    child,
    child_thread,
    spawn,
    submit,
    thread,
)

DEADLINE_S = 60.0
END, ANEW = OnFailure.END, OnFailure.ANEW


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(supervised, "LAST_PAUSE_S", 0.004)


class Failing:
    """A work that fails at each of its first starts, and runs on after them."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        """error: None returns instead."""
        self.starts = 0
        self.runs = threading.Event()
        self.release = threading.Event()
        self._failures = failures
        self._error = error

    def begin(self) -> bool:
        """Return True where the work is to run on."""
        self.starts += 1
        if self.starts > self._failures:
            self.runs.set()
            return True
        if self._error is not None:
            raise self._error
        return False

    async def work(self) -> None:
        if self.begin():
            await asyncio.Event().wait()

    def on_thread(self) -> None:
        if self.begin():
            assert self.release.wait(DEADLINE_S)


def names(owner: ProcessSupervisor) -> list[str]:
    return [work.name for work in owner.works]


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def owner(reasons: list[str]) -> ProcessSupervisor:
    return ProcessSupervisor(reasons.append)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[int], list[str]]:
    def of_level(level: int) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    return of_level


async def test_a_failed_work_ends_the_process_once_all_have_been_told(
    owner: ProcessSupervisor, reasons: list[str], logged: Callable[[int], list[str]]
) -> None:
    told: list[str] = []

    async def tell(error: StoppedError) -> None:
        assert owner.reason and not reasons
        told.append(str(error))

    async def cannot_tell(error: StoppedError) -> None:
        raise OSError("the peer is gone")

    owner.when_ending(tell)
    owner.when_ending(cannot_tell)
    owner.when_ending(tell)
    spawn(Failing(1, ValueError("out of range")).work, owner, END, "grants")
    async with asyncio.timeout(DEADLINE_S):
        error = await owner.ended()
    reason = "grants ended: ValueError: out of range"
    assert reasons == [reason] and told == [reason, reason]
    assert (str(error), owner.reason) == (reason, reason)
    assert logged(logging.CRITICAL) == [f"{reason}; this process ends"]
    assert not owner.works


async def test_one_who_does_not_hear_the_end_does_not_delay_it_for_ever(
    owner: ProcessSupervisor, reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "LAST_WORDS_S", 0.01)
    told = asyncio.Event()

    async def never(error: StoppedError) -> None:
        await asyncio.Event().wait()

    async def tell(error: StoppedError) -> None:
        told.set()

    owner.when_ending(tell)
    owner.when_ending(never)
    owner.end("engine", ValueError("torn"))
    await until(lambda: reasons)
    assert told.is_set()


async def test_the_first_reason_counts_and_every_one_is_logged(
    owner: ProcessSupervisor, reasons: list[str], logged: Callable[[int], list[str]]
) -> None:
    spawn(Failing(1, ValueError("first")).work, owner, END, "grants")
    spawn(Failing(1, KeyError("second")).work, owner, END, "quarantine")
    await owner.ended()
    assert reasons == ["grants ended: ValueError: first"]
    assert len(logged(logging.CRITICAL)) == 2


async def test_a_work_is_started_anew_until_it_runs(
    owner: ProcessSupervisor, logged: Callable[[int], list[str]]
) -> None:
    failing = Failing(3, OSError("no such file"))
    spawn(failing.work, owner, ANEW, "certificates")
    await until(failing.runs.is_set)
    assert failing.starts == 4 and not owner.reason
    lines = logged(logging.ERROR)
    assert [line.rpartition(", ")[2] for line in lines] == [
        f"failure {number} of this process" for number in (1, 2, 3)
    ]
    assert all(line.startswith("certificates ended: OSError: no such file") for line in lines)
    pauses = [float(line.split("again in ")[1].split(" s")[0]) for line in lines]
    assert pauses == [0.001, 0.002, 0.004]
    assert names(owner) == ["certificates"]
    await owner.close()


@pytest.mark.parametrize("policy", [END, ANEW])
async def test_a_work_that_should_run_on_and_returns_has_failed(
    policy: OnFailure, owner: ProcessSupervisor
) -> None:
    failing = Failing(1)
    spawn(failing.work, owner, policy, "leases")
    await until(lambda: owner.reason or failing.runs.is_set())
    assert ("should run until it is ended" in owner.reason) is (policy is END)
    await owner.close()


async def test_a_work_that_may_return_has_not_failed(owner: ProcessSupervisor) -> None:
    failing = Failing(1)
    await spawn(failing.work, owner, END, "hand-off", may_return=True)
    assert not owner.reason and failing.starts == 1
    await until(lambda: not owner.works)


@pytest.mark.parametrize("policy", [END, ANEW])
async def test_a_cancelled_work_has_not_failed(
    policy: OnFailure, owner: ProcessSupervisor, logged: Callable[[int], list[str]]
) -> None:
    async def raises_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("as grpc.aio does")

    for work in (Failing(0).work, raises_at_its_end):
        task = spawn(work, owner, policy, "session")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert not owner.reason and not owner.works and not logged(logging.ERROR)


async def test_something_else_that_was_cancelled_is_a_failure(owner: ProcessSupervisor) -> None:
    """A work that awaits a cancelled task would end like a cancelled one, and nobody would know."""

    async def awaits_cancelled() -> None:
        other = child(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    spawn(awaits_cancelled, owner, END, "reporter")
    await owner.ended()
    assert "reporter ended" in owner.reason and "cancelled" in owner.reason


async def test_closing_ends_all_tasks_and_starts_none_anew(
    owner: ProcessSupervisor, logged: Callable[[int], list[str]]
) -> None:
    stubborn = asyncio.Event()

    async def late() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await stubborn.wait()

    works = [spawn(Failing(0).work, owner, ANEW, "reporter") for _ in range(3)]
    last = spawn(late, owner, END, "link")
    assert names(owner) == ["link", "reporter", "reporter #2", "reporter #3"]
    await asyncio.sleep(0)
    await owner.close(deadline_s=0.01)
    assert all(work.cancelled() for work in works) and not last.done()
    assert logged(logging.ERROR) == ["link did not end within 0.01 s"]
    stubborn.set()
    await asyncio.wait([last])
    assert not owner.works


async def test_a_failed_thread_ends_the_process_on_the_loop(
    owner: ProcessSupervisor, reasons: list[str]
) -> None:
    on = []

    async def tell(error: StoppedError) -> None:
        on.append(threading.current_thread())

    owner.when_ending(tell)
    thread(Failing(1, ValueError("broken")).on_thread, owner, END, "transfers")
    await until(lambda: reasons)
    assert reasons == ["transfers ended: ValueError: broken"]
    assert on == [threading.main_thread()]
    await until(lambda: not owner.works)


def test_a_process_without_a_loop_ends_all_the_same(
    owner: ProcessSupervisor, reasons: list[str]
) -> None:
    thread(Failing(1, ValueError("broken")).on_thread, owner, END, "renewal").join(DEADLINE_S)
    assert reasons == ["renewal ended: ValueError: broken"]


def test_a_thread_is_started_anew_until_it_runs(
    owner: ProcessSupervisor, logged: Callable[[int], list[str]]
) -> None:
    failing = Failing(2, ValueError("broken"))
    started = thread(failing.on_thread, owner, ANEW, "renewal", may_return=True)
    assert failing.runs.wait(DEADLINE_S)
    assert failing.starts == 3 and names(owner) == ["renewal"]
    failing.release.set()
    started.join(DEADLINE_S)
    assert not started.is_alive() and not owner.works
    assert len(logged(logging.ERROR)) == 2


async def test_a_thread_of_a_closed_owner_is_not_started_anew(owner: ProcessSupervisor) -> None:
    await owner.close()
    failing = Failing(5, ValueError("broken"))
    thread(failing.on_thread, owner, ANEW, "renewal").join(DEADLINE_S)
    assert failing.starts == 1


def test_the_maker_of_a_thread_hears_of_its_failure() -> None:
    failures: list[Exception] = []
    error = ValueError("broken")
    child_thread(Failing(1, error).on_thread, "engine", failures.append).join(DEADLINE_S)
    assert failures == [error]


async def test_whoever_awaits_a_child_hears_of_its_failure() -> None:
    with pytest.raises(ValueError, match="broken"):
        await child(Failing(1, ValueError("broken")).work())


def test_whoever_reads_the_result_of_a_pool_hears_of_a_failure() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert submit(pool, max, 3, 5).result(DEADLINE_S) == 5
        with pytest.raises(ValueError, match="broken"):
            submit(pool, Failing(1, ValueError("broken")).on_thread).result(DEADLINE_S)


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    runs = threading.Thread(target=loop.run_forever)
    runs.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    runs.join(DEADLINE_S)
    loop.close()


def test_a_call_on_another_threads_loop_returns_or_raises_here(
    other_loop: asyncio.AbstractEventLoop,
) -> None:
    async def answer() -> int:
        return 7

    assert call_on(other_loop, answer(), DEADLINE_S) == 7
    with pytest.raises(ValueError, match="broken"):
        call_on(other_loop, Failing(1, ValueError("broken")).work(), DEADLINE_S)


def test_the_kernel_knows_threads_by_their_names() -> None:
    shown: dict[str, str] = {}

    def look() -> None:
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        shown[threading.current_thread().name] = comm.read_text().strip()

    owner = ProcessSupervisor()
    child_thread(look, "short", lambda error: pytest.fail(repr(error))).join(DEADLINE_S)
    thread(look, owner, END, "a name of many letters", may_return=True).join(DEADLINE_S)
    assert shown == {"short": "short", "a name of many letters": "a name of many "[:15].strip()}
