"""Guesses never reach past the last token that an answer may have."""

import random

import pytest
from engine.engines import PAGE, greedy, make_engine, random_prompt, run, tokens_of
from engine.hash_model import VOCAB, HashModel, expected_tokens
from engine.proposers import Known, proposing

from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm

ANSWER = 21
PAST = 16  # tokens behind an answer's last one that are guessed too, more than a window has


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "one by one"])
@pytest.mark.parametrize("side", ["host", "device", "texts"])
def test_a_window_ends_where_its_answer_does(
    seeded: random.Random, side: str, overlap: bool
) -> None:
    """The limit of a sequence is no multiple of the page, and no room is left behind the answer: a
    guess past it would be written behind the row's tokens, into those of the next row's request.
    """
    length = seeded.randrange(1, 4) * PAGE + 2
    prompts = [random_prompt(seeded, length, length) for _ in range(3)]
    texts = [(*p, *expected_tokens(HashModel(), p, ANSWER + PAST)) for p in prompts]
    engine = make_engine(
        max_running=3,
        max_model_len=length + ANSWER,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=8,
        overlap=overlap,
        **proposing(Known(texts, 1.0, VOCAB), side),
    )
    assert (length + ANSWER) % PAGE
    for number, prompt in enumerate(prompts):
        engine.submit(RequestSpec(str(number), prompt, greedy(ANSWER)))
    events = run(engine)
    for number, text in enumerate(texts):
        assert tokens_of(events, str(number)) == list(text[length:][:ANSWER])
    assert engine.counters.draft_tokens_accepted
