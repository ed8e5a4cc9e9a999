"""Hand-offs of every family between one rank and several, each a process, over both channels."""

import random
from dataclasses import replace

import pytest
from decode.test_unequal_ranks import STEPS, config, joined, poison
from engine.engines import greedy
from engine.models.test_shards import DIVIDED
from oracle.reference import Oracle
from oracle.specs import SPECS
from worker.cluster import decode_worker, prefill_worker

from baton.engine.engine import Engine
from baton.transfer.handoff import HandoffState

LENGTHS = (3, 53, 101)


@pytest.mark.chaos  # for its length alone
@pytest.mark.parametrize(("name", "ranks"), DIVIDED)
async def test_the_tokens_of_every_family_are_those_of_transformers(
    oracle: Oracle, name: str, ranks: int, seeded: random.Random
) -> None:
    folder = oracle.checkpoint(name)
    vocab = SPECS[name].config["vocab_size"]
    for p, d, channel in ((1, ranks, "nixl"), (ranks, 1, "grpc")):
        engines = [
            Engine.load(replace(config(folder, tp), mamba_track_interval=256)) for tp in (p, d)
        ]
        prompts = [tuple(seeded.randrange(3, vocab) for _ in range(n)) for n in LENGTHS]
        try:
            for engine in engines:
                poison(engine)
            prefill = prefill_worker(loaded=engines[0], channel=channel)
            decode = decode_worker(loaded=engines[1], channel=channel)
            async with joined(prefill, decode) as router:
                started = [await router.start(each, greedy(STEPS), [prefill]) for each in prompts]
                for prompt, (_, answer) in zip(prompts, started, strict=True):
                    await answer.end()
                    oracle.assert_all_greedy(folder, [prompt], [answer.token_ids], STEPS)
                for worker in (prefill, decode):
                    await worker.clean()
                assert decode.been_in(HandoffState.ACTIVE) == len(prompts)
        finally:
            for engine in engines:
                engine.close()
