"""Requests that are handed over and then verify drafts, over each channel."""

import random

import pytest
from engine.engines import greedy, random_prompt
from engine.hash_model import VOCAB, HashModel, expected_tokens
from engine.proposers import Known, proposing
from transfer.wires import CHANNELS
from worker.cluster import decode_worker, prefill_worker, running, session

from baton.core.cache_salt import make_salt
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.transfer.channels.local_hub import LocalHub

OUTPUT = 40


@pytest.mark.parametrize(("right", "side"), [(0.0, "device"), (0.7, "device"), (1.0, "host")])
@pytest.mark.parametrize("channel", CHANNELS)
async def test_tokens_are_those_of_plain_decoding(
    channel: str, right: float, side: str, seeded: random.Random
) -> None:
    """The canary checks every slot and page that the rank reads."""
    shared = random_prompt(seeded, 40, 40)
    prompts = [(*shared, *random_prompt(seeded, 1, 30)) for _ in range(3)]
    answers = [expected_tokens(HashModel(), prompt, OUTPUT) for prompt in prompts]
    known = [(*prompt, *answer) for prompt, answer in zip(prompts, answers, strict=True)]
    hub = LocalHub() if channel == "local" else None
    prefill = prefill_worker(channel=channel, hub=hub)
    decode = decode_worker(
        channel=channel,
        hub=hub,
        canary=True,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        **proposing(Known(known, right, VOCAB, seeded), side),
    )
    async with running(prefill, decode), session(decode) as router:
        for prompt, expected in zip(prompts, answers, strict=True):
            _, answer = await router.start(prompt, greedy(OUTPUT), [prefill])
            await answer.end()
            assert answer.token_ids == expected
        counters = await decode.context.port.call(lambda engine: engine.counters)
        assert counters.draft_rows
        assert (counters.draft_tokens_accepted > 0) == (right > 0)
        await decode.clean()
        await prefill.clean()


async def test_a_prediction_reaches_the_rank_that_goes_on_after_another(
    seeded: random.Random,
) -> None:
    """The second attempt has some of the answer, which the prefill worker computes again."""
    prompt = random_prompt(seeded, 20, 40)
    expected = expected_tokens(HashModel(), prompt, OUTPUT)
    hub = LocalHub()
    prefill = prefill_worker(channel="local", hub=hub)
    decode = decode_worker(
        channel="local",
        hub=hub,
        canary=True,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
    )
    async with running(prefill, decode), session(decode) as router:
        for here in (False, True):
            _, answer = await router.start(
                prompt,
                greedy(OUTPUT),
                [prefill],
                outputs=tuple(expected[:5]),
                prediction_ids=tuple(expected),
                prefill_here=here,
            )
            finished = await answer.end()
            assert answer.token_ids == expected[5:]
            (count,) = finished.usage.drafts.by_proposer
            assert count.proposer == "prediction"
            assert count.proposed == count.accepted > 20
        await decode.clean()
        await prefill.clean()


async def test_drafts_come_from_earlier_answers_of_the_same_scope_alone(
    seeded: random.Random,
) -> None:
    prompt = random_prompt(seeded, 20, 40)
    expected = expected_tokens(HashModel(), prompt, OUTPUT)
    hub = LocalHub()
    prefill = prefill_worker(channel="local", hub=hub)
    decode = decode_worker(
        channel="local",
        hub=hub,
        canary=True,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_ngram_capacity=4096,
    )
    async with running(prefill, decode), session(decode) as router:
        for scope, found in (("ours", False), ("theirs", False), ("ours", True)):
            scoped = make_salt(scope)
            _, answer = await router.start(prompt, greedy(OUTPUT), [prefill], draft_scope=scoped)
            finished = await answer.end()
            assert answer.token_ids == expected
            proposers = [count.proposer for count in finished.usage.drafts.by_proposer]
            assert ("shared" in proposers) is found
        await decode.clean()
        await prefill.clean()
