"""The order of service where a prefill worker or a decode rank has more than it can do at once."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

from engine.engines import greedy, make_engine, random_prompt
from engine.hash_model import HashModel, expected_tokens
from worker.cluster import DEADLINE_S, decode_worker, prefill_worker, running, session

from baton.decode.grants import GrantRequest, Grants
from baton.engine.request.request import Reservation


async def test_a_prefill_worker_reads_the_more_urgent_prompt_first(seeded: random.Random) -> None:
    # One at a time: the step after the first one is planned while the others come.
    prefill, decode = prefill_worker(max_running=1), decode_worker()
    # A step reads any of them: one in the midst would give way as well.
    prompts = {name: random_prompt(seeded, 4, 16) for name in ("a", "b", "c", "low", "high")}
    priorities = {"low": -1, "high": 2}
    async with running(prefill, decode), session(decode) as router:
        prefill.model.gate.allow(0)
        answers, names = {}, {}
        for name in ("a", "low", "b", "c", "high"):
            priority = priorities.get(name, 0)
            key, answers[name] = await router.start(
                prompts[name], greedy(4), [prefill], priority=priority
            )
            names[key] = name
            if name == "a":  # it is being read when the others come
                await prefill.blocked()
        await prefill.opened(5)
        prefill.model.gate.open()
        for name, answer in answers.items():
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompts[name], 4)
    assert [names[key] for key in router.begun] == ["a", "high", "b", "c", "low"]


async def test_a_rank_takes_the_more_urgent_hand_off_first(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(max_running=6, held_fraction=1.0), decode_worker(tickets=1)
    prompts = {name: random_prompt(seeded, 20, 60) for name in ("a", "b", "c", "low", "high")}
    priorities = {"low": -1, "high": 2}
    async with running(prefill, decode), session(decode) as router:
        decode.model.gate.allow(0)
        answers, names = {}, {}
        for name in ("a", "low", "b", "c", "high"):
            priority = priorities.get(name, 0)
            key, answers[name] = await router.start(
                prompts[name], greedy(9), [prefill], priority=priority
            )
            names[key] = name
            if name == "a":  # its step goes on, and with it the rank's engine, until all are read
                await decode.blocked()
            else:
                await answers[name].until(lambda answer: answer.token_ids)
        decode.model.gate.open()
        for name, answer in answers.items():
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompts[name], 9)
    # "low" had asked before there was anyone else.
    order = [names[key] for key in router.decoded]
    assert [name for name in order if name != "low"] == ["a", "high", "b", "c"]


async def test_grants_go_by_priority_then_age() -> None:
    engine = make_engine(tickets=1)

    async def call(fn: Any) -> Any:
        return fn(engine)

    port = SimpleNamespace(call=call, post=lambda fn, what: fn(engine))
    grants = Grants(port)  # type: ignore[arg-type]
    order: list[str] = []
    given: asyncio.Queue[Reservation] = asyncio.Queue()

    def granted(reservation: Reservation) -> None:
        order.append(reservation.request_id)
        given.put_nowait(reservation)

    for name, priority in (("a", 0), ("b", -3), ("c", 1), ("d", 0), ("e", 1), ("gone", 9)):
        grants.ask(GrantRequest(name, 5, b"", b"", priority, granted, lambda error: None))
    grants.withdraw("gone")
    running = asyncio.create_task(grants.run())
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(5):
            grants.give_back(await given.get())
    running.cancel()
    assert order == ["c", "e", "a", "d", "b"]
