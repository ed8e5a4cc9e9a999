"""A rank whose memory runs out resumes from its cache, also where the prompt was scored."""

import random
from dataclasses import replace

from engine.engines import PAGE, greedy
from engine.hash_model import VOCAB, HashModel, expected_tokens
from worker.cluster import decode_worker, prefill_worker, running, session

from baton.engine.engine import Engine
from baton.transfer.handoff import HandoffState


async def test_a_preempted_request_that_was_scored_resumes_from_its_snapshots(
    seeded: random.Random,
) -> None:
    prefill, decode = prefill_worker(), decode_worker(pages=24, max_running=2)
    prompts = [tuple(seeded.randrange(VOCAB) for _ in range(4 * PAGE)) for _ in range(2)]
    sampling = replace(greedy(13 * PAGE), prompt_logprobs_start=0)
    async with running(prefill, decode), session(decode) as router:
        decode.model.gate.allow(0)  # or the first could end before the second is there
        answers = []
        for prompt in prompts:
            answers.append((await router.start(prompt, sampling, [prefill]))[1])
            await decode.blocked()
        await decode.step_until(lambda: decode.been_in(HandoffState.ACTIVE) == 2)
        for prompt, answer in zip(prompts, answers, strict=True):
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 13 * PAGE)
            assert [entry.token_id for entry in answer.prompt_logprobs] == list(prompt)
        counters = await decode.context.port.call(lambda engine: engine.counters)
        assert not await decode.context.port.call(Engine.audit)
    assert counters.preemptions
    assert counters.state_hit_tokens
