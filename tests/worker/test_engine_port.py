"""The engine's thread tells the asyncio thread all that it has to, in order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from baton.core.supervised import child_thread
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.worker.engine_port import EngineBatchHandler, EnginePort, EventBatch

DEADLINE_S = 60.0


class Lost(EngineBatchHandler):
    """A handler that notes what a receiver has raised."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def on_batch(self, batch: EventBatch) -> None:
        pytest.fail("no step runs here")

    def on_engine_failure(self, error: Exception) -> None:
        pytest.fail(f"the loop ended: {error}")

    def on_lost_event(self, error: Exception) -> None:
        self.errors.append(str(error))


class IdleEngine:
    """An engine without requests."""

    has_work = False
    followers = tier = None
    config = EngineConfig(model=Path("none"), device="cpu")

    def listen(self, on_layers: Callable[[Sequence[Any]], None]) -> None:
        self._on_layers = on_layers

    def tell_each(self, names: str) -> None:
        for name in names:
            self._on_layers([name])


def answer_with(number: int) -> Callable[[Engine], int]:
    """Return a question that is answered with the number."""
    return lambda engine: number


class Heard(NamedTuple):
    """A port that runs, its handler, and one entry for each look at the load."""

    port: EnginePort
    handler: Lost
    loads: list[int]


@pytest.fixture
async def heard() -> AsyncIterator[Heard]:
    handler = Lost()
    port = EnginePort(cast(Engine, IdleEngine()), lambda seconds: None)
    loads: list[int] = []
    port.start(handler, lambda: loads.append(1))
    yield Heard(port, handler, loads)
    await asyncio.to_thread(port.stop, DEADLINE_S)


async def test_answers_come_in_order_each_with_a_look_at_the_load(heard: Heard) -> None:
    port, handler, loads = heard
    answers: list[int] = []
    over = asyncio.Event()
    for number in range(50):
        port.request(answer_with(number), answers.append, lambda error: None)
    port.request(lambda engine: None, lambda _: over.set(), lambda error: None)
    async with asyncio.timeout(DEADLINE_S):
        await over.wait()
    assert answers == list(range(50))
    assert not handler.errors
    assert len(loads) >= 50


async def test_an_answer_that_raises_is_reported_and_the_others_still_come(heard: Heard) -> None:
    port, handler, _ = heard
    over = asyncio.Event()

    def broken(_: None) -> None:
        raise ValueError("broken")

    port.request(lambda engine: None, broken, lambda error: None)
    port.request(lambda engine: None, lambda _: over.set(), lambda error: None)
    async with asyncio.timeout(DEADLINE_S):
        await over.wait()
    assert handler.errors == ["broken"]


async def test_what_is_told_while_the_loop_is_busy_wakes_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failed(error: Exception) -> None:
        raise error

    engine = IdleEngine()
    port = EnginePort(cast(Engine, engine), lambda seconds: None)
    heard: list[object] = []  # letters stand for what is computed
    port.listen(lambda computed, at_s: heard.extend(computed))
    loop = asyncio.get_running_loop()
    wakes: list[int] = []
    wake = loop.call_soon_threadsafe

    def counted(call: Callable[[], None]) -> asyncio.Handle:
        wakes.append(1)
        return wake(call)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for group in ("abc", "de"):
        telling = child_thread(partial(engine.tell_each, group), "tells", failed)
        telling.join(DEADLINE_S)  # the loop is busy meanwhile
        await asyncio.sleep(0)
    assert heard == list("abcde")
    assert len(wakes) == 2
