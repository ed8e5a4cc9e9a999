"""The queue before the engine of a worker that answers by itself."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from deploy.tiny_worker import DEADLINE_S, findings, make_worker, prompt, served
from kit.polling import until, until_answered

from baton.api.admission.room import DECODES_AHEAD
from baton.api.backend import GenerateRequest, TokenEvent
from baton.api.deadline import Deadline
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import Finished, FinishReason
from baton.core.sampling_params import SamplingParams
from baton.standalone import backend as local_backend
from baton.standalone.backend import StandaloneBackend

LONG = 3000
IN_ENGINE = 1 + DECODES_AHEAD  # of a worker that runs one request
NUMBERS = count(1)


@asynccontextmanager
async def backend(tiny: Path) -> AsyncIterator[StandaloneBackend]:
    """That of a worker which runs one request at a time; at the end its books balance."""
    async with make_worker(tiny, max_running=1) as worker:
        yield worker.backend
        assert not await findings(worker)


class Asked:
    """A request under way: its task ends with the answer's end, or raises what refused it."""

    def __init__(
        self,
        to: StandaloneBackend,
        owner: str | None = None,
        new: int = LONG,
        ended: list[str | None] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.id = f"{next(NUMBERS):032x}"
        self.first = asyncio.Event()
        self._ended = [] if ended is None else ended
        greedy = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        deadline = None if timeout_s is None else Deadline.of(timeout_s)
        self._request = GenerateRequest(self.id, (5, 6, 7), greedy, owner=owner, deadline=deadline)
        self.task = asyncio.create_task(self._run(to))

    async def _run(self, to: StandaloneBackend) -> Finished:
        async for event in to.generate(self._request):
            if not isinstance(event, TokenEvent):
                self._ended.append(self._request.owner)
                return event
            self.first.set()
        raise AssertionError("an answer without an end")


async def cancelled(to: StandaloneBackend, asked: Sequence[Asked]) -> None:
    """Cancel all, wait for their ends, and see that none had another."""
    for each in asked:
        await to.cancel(each.id)
    async with asyncio.timeout(DEADLINE_S):
        for each in asked:
            try:
                assert (await each.task).end.reason is FinishReason.ABORT
            except ApiError as error:
                assert error.code is ErrorCode.CANCELLED


async def settled(to: StandaloneBackend, waiting: int) -> None:
    """Wait until so many requests wait before the engine."""
    await until(lambda: to._queue.waiting == waiting)


async def test_past_the_bound_a_request_is_told_to_come_later(
    tiny: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_backend, "MAX_QUEUED", 2)
    async with served(tiny, max_running=1) as client:
        body = {
            "input_ids": prompt(rng, 5),
            "sampling_params": {"n": 3, "max_new_tokens": 3000, "ignore_eos": True},
            "rid": "many",
        }
        many = asyncio.create_task(client.http.post("/generate", json=body))

        async def all_here() -> bool:
            state = await client.state()
            return bool(state["running"] + state["waiting"] == 3)

        await until_answered(all_here)
        more = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
        refused = await client.http.post("/generate", json=more)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert "3 requests are here" in refused.json()["error"]["message"]
        await client.http.post("/abort_request", json={"rid": "many"})
        assert [reply["meta_info"]["finish_reason"]["type"] for reply in (await many).json()] == [
            "abort"
        ] * 3
        assert len((await client.generate([5], 1))["output_ids"]) == 1


async def test_the_refused_may_come_again_when_the_queue_has_emptied(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(local_backend, "MAX_QUEUED", IN_ENGINE + 1)
    monkeypatch.setattr(local_backend, "monotonic", lambda: now)
    async with backend(tiny) as to:
        asked = [Asked(to) for _ in range(IN_ENGINE + 2)]
        await settled(to, 2)
        with pytest.raises(ApiError, match="5 requests are here already") as refused:
            await Asked(to).task
        assert refused.value.retry_after_s == 1, "nothing has left the queue yet"
        now = 20.0
        await cancelled(to, asked[:1])
        await settled(to, 1)
        asked.append(Asked(to))
        await settled(to, 2)
        with pytest.raises(ApiError, match="send it again later") as refused:
            await Asked(to).task
        assert refused.value.code is ErrorCode.OVERLOADED
        # One left in 20 s, which weigh as 8.6; two wait, and it would be the third.
        assert refused.value.retry_after_s is not None and 15 < refused.value.retry_after_s < 30
        await cancelled(to, asked[1:])


async def test_a_key_does_not_wait_behind_the_flood_of_another(tiny: Path) -> None:
    ended: list[str | None] = []
    async with backend(tiny) as to:
        flood = [Asked(to, "ada", new=200, ended=ended) for _ in range(3 * IN_ENGINE)]
        await settled(to, 2 * IN_ENGINE)
        other = Asked(to, "ben", new=4, ended=ended)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(other.task, *(each.task for each in flood))
    assert ended.index("ben") <= IN_ENGINE, "only what the engine had may come first"


async def test_a_full_queue_gives_the_place_of_the_key_that_has_most(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_backend, "MAX_QUEUED", IN_ENGINE)
    async with backend(tiny) as to:
        flood = [Asked(to, "ada") for _ in range(IN_ENGINE + 1)]
        await settled(to, 1)
        other = Asked(to, "ben")
        with pytest.raises(ApiError, match="other API keys need this one's room"):
            await flood[-1].task
        with pytest.raises(ApiError, match="here already"):
            await Asked(to, "ada").task
        await cancelled(to, [other, *flood[:-1]])


async def test_what_waits_can_be_cancelled_and_has_a_deadline(tiny: Path) -> None:
    async with backend(tiny) as to:
        flood = [Asked(to) for _ in range(IN_ENGINE)]
        late, left = Asked(to, timeout_s=0.3), Asked(to)
        await settled(to, 2)
        await cancelled(to, [left])
        with pytest.raises(ApiError) as missed:
            await late.task
        assert missed.value.code is ErrorCode.DEADLINE_EXCEEDED
        assert not late.first.is_set() and not left.first.is_set()
        await settled(to, 0)
        await cancelled(to, flood)


def gauge(page: str) -> list[str]:
    """Return the values of the gauge of requests that wait."""
    name = "baton_worker_requests_waiting{"
    return [line.split()[-1] for line in page.splitlines() if line.startswith(name)]


async def test_what_waits_counts_as_waiting(tiny: Path, rng: random.Random) -> None:
    async with served(tiny, max_running=1) as client:
        body = {
            "input_ids": prompt(rng, 5),
            "sampling_params": {"n": 6, "max_new_tokens": LONG, "ignore_eos": True},
            "rid": "many",
        }
        many = asyncio.create_task(client.http.post("/generate", json=body))

        async def five_wait() -> bool:
            return bool((await client.state())["waiting"] == 5)

        async def the_page_says_so() -> bool:
            return "5.0" in gauge((await client.http.get("/metrics")).text)

        await until_answered(five_wait)
        await until_answered(the_page_says_so)
        await client.http.post("/abort_request", json={"rid": "many"})
        await many


async def test_a_rank_that_is_not_there_is_refused(tiny: Path) -> None:
    async with served(tiny) as client:
        body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
        refused = await client.http.post("/generate", json=body | {"routed_dp_rank": 3})
        assert refused.status_code == 400
        assert "routed_dp_rank is 3" in refused.json()["error"]["message"]
        taken = await client.http.post("/generate", json=body | {"routed_dp_rank": 0})
        assert taken.status_code == 200
