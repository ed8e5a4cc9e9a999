"""Hand-offs between workers of other numbers of ranks whose models draft by multi-token prediction:
the answers are those of transformers, and the drafts those of one engine that saw it all."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from decode.test_state_returner import fetches
from decode.test_unequal_ranks import PAIRS, STEPS, config, joined, poison
from engine.engines import greedy
from engine.test_mtp_drafts import Guessed, assert_same_guesses, right_of, taken, with_mtp
from kit.polling import until
from mtp_models import MtpCheckpoints
from oracle.mtp import MTP_SPECS
from oracle.reference import Oracle
from worker.cluster import decode_worker, prefill_worker

from baton.engine.engine import Engine
from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState
from baton.worker.config import StateReturn
from baton.worker.prefix_fetcher import Outcome
from engine import test_mtp_drafts as one_rank

NAME = "qwen3_next_moe"

guessed = one_rank.guessed


@pytest.fixture(params=PAIRS[:2], ids=str)
def engines(
    request: pytest.FixtureRequest, mtp_checkpoints: MtpCheckpoints
) -> Iterator[tuple[Engine, Engine]]:
    """One that computes prompts and one that decodes, on other numbers of ranks."""
    p, d = request.param
    folder = mtp_checkpoints.folder(NAME)
    prefill = Engine.load(with_mtp(config(folder, p)).for_prompts)
    decode = Engine.load(with_mtp(config(folder, d)))
    for engine in (prefill, decode):
        poison(engine)
    yield prefill, decode
    for engine in (prefill, decode):
        engine.close()


async def test_turns_that_go_to_other_ranks_and_back_are_drafted_for_as_cold_ones(
    oracle: Oracle,
    mtp_checkpoints: MtpCheckpoints,
    engines: tuple[Engine, Engine],
    seeded: random.Random,
    guessed: Guessed,
) -> None:
    """The second turns go on from the state that the first ones have returned."""
    folder, vocab = mtp_checkpoints.folder(NAME), MTP_SPECS[NAME].spec.config["vocab_size"]

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(seeded.randrange(3, vocab) for _ in range(length))

    prefill, decode = (
        make(loaded=engine, worker={"state_return": StateReturn.DEMAND})
        for make, engine in zip((prefill_worker, decode_worker), engines, strict=True)
    )
    firsts = [prompt(length) for length in (1, 53, 101)]
    prompts, answers = [], []
    async with joined(prefill, decode) as router:

        async def turn(asked: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
            started = [await router.start(each, greedy(STEPS), [prefill]) for each in asked]
            for each, (_, answer) in zip(asked, started, strict=True):
                finished = await answer.end()
                assert finished.reason == common_pb2.LENGTH, finished
                prompts.append(each)
                answers.append(tuple(answer.token_ids))
            return answers[-len(asked) :]

        said = zip(firsts, await turn(firsts), strict=True)
        await until(lambda: decode.been_in(HandoffState.ACTIVE) == len(firsts))
        await turn([(*first, *answer, *prompt(20)) for first, answer in said])
        for worker in (prefill, decode):
            await worker.clean()
        assert fetches(prefill, Outcome.FETCHED) >= 1
    oracle.assert_all_greedy(folder, prompts, answers, STEPS)
    found = taken(guessed)
    assert prefill.engine.counters.draft_tokens == 0

    cold = Engine.load(replace(with_mtp(config(folder, 1)), prefix_caching=False))
    cold.generate([*map(list, prompts)], greedy(STEPS))
    assert right_of(decode.engine) == right_of(cold)
    assert_same_guesses(taken(guessed), found, len(found))
