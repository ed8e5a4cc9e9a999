"""Work goes on only while somebody waits for it."""

import asyncio
from typing import Any

import pytest

from baton.api.disconnect import ClientGone, unless_disconnected


class Client:
    """Sends nothing until it leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await asyncio.wait_for(self.left.wait(), 60)
        return {"type": "http.disconnect"}


async def test_the_work_is_cancelled_and_cleaned_up_before_the_client_is_reported_gone() -> None:
    client = Client()
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            client.left.set()
            await asyncio.wait_for(asyncio.Event().wait(), 60)
        finally:
            await asyncio.sleep(0)
            cleaned = True

    with pytest.raises(ClientGone):
        await unless_disconnected({}, client.receive, work())
    assert cleaned


async def test_a_client_that_stays_gets_the_result_or_the_error() -> None:
    async def answer() -> int:
        return 5

    async def fail() -> int:
        raise ValueError("no")

    assert await unless_disconnected({}, Client().receive, answer()) == 5
    with pytest.raises(ValueError, match="no"):
        await unless_disconnected({}, Client().receive, fail())
    assert len(asyncio.all_tasks()) == 1
