"""The trained models of examples/ answer rightly after a hand-off over each channel."""

from typing import Any

import pytest
from decode.test_channels import CHANNELS
from decode.test_families import Gated
from engine.engines import greedy
from recall_models import COURSES
from worker.cluster import decode_worker, prefill_worker, running, session

from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.handoff import HandoffState
from recall.questions import held_out

LENGTHS = (40, 64, 130)
NUMBER = 12


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("name", COURSES)
async def test_an_answer_is_right_where_another_worker_read_the_question(
    name: str, channel: str
) -> None:
    course = COURSES[name]
    folder, tasks = course.folder / "model", course.learnt
    questions = [
        held_out(number, tasks[number % len(tasks)], LENGTHS[number % len(LENGTHS)])
        for number in range(NUMBER)
    ]
    options: dict[str, Any] = {"page_size": 16, "chunk": 64, "max_model_len": 256, "pages": 5000}
    hub = LocalHub()
    prefill = prefill_worker(model=Gated(folder), channel=channel, hub=hub, **options)
    decode = decode_worker(model=Gated(folder), channel=channel, hub=hub, **options)
    async with running(prefill, decode), session(decode) as router:
        started = [
            await router.start(tuple(q.prompt_ids), greedy(len(q.answer)), [prefill])
            for q in questions
        ]
        for question, (_, answer) in zip(questions, started, strict=True):
            await answer.end()
            assert answer.token_ids == question.answer_ids
        await decode.clean()
        await prefill.clean()
    assert decode.been_in(HandoffState.ACTIVE) == NUMBER
