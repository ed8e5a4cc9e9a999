"""One request's life: chunks, tokens, its end, and what it leaves behind."""

import random

import pytest
from engine.engines import (
    assert_clean,
    finish_of,
    greedy,
    make_engine,
    random_prompt,
    run,
    tokens_of,
)
from engine.hash_model import HashModel, expected_tokens

from baton.engine.events import FinishReason, Scheduled
from baton.engine.memory.owners import Owner
from baton.engine.request import RequestSpec


def test_the_tokens_are_those_of_the_definition(seeded: random.Random) -> None:
    engine = make_engine()
    prompt = random_prompt(seeded)
    engine.submit(RequestSpec("a", prompt, greedy(20)))
    events = run(engine)
    assert events[0] == Scheduled("a")
    assert tokens_of(events, "a") == expected_tokens(HashModel(), prompt, 20)
    finish = finish_of(events, "a")
    assert (finish.reason, finish.prompt_tokens) == (FinishReason.LENGTH, len(prompt))
    assert finish.completion_tokens == 20
    assert engine.status().slots[Owner.LIVE] == engine.status().pages[Owner.LIVE] == 0
