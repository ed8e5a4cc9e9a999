"""Several turns through a prefill worker and a rank, with hits on both sides: the tokens are those
of transformers, which reads every turn from its first token."""

import random
from typing import Any

import pytest
from decode.test_families import Gated
from engine.engines import greedy
from oracle.reference import Oracle
from oracle.specs import SPECS
from worker.cluster import decode_worker, prefill_worker, running, session

from baton.transfer.channels.local_hub import LocalHub
from baton.worker.config import SendSnapshots, StateReturn

TURNS, STEPS = 3, 24


@pytest.mark.parametrize(
    ("name", "channel", "returns"),
    [
        ("granite_moe_rope", "grpc", StateReturn.OFF),
        ("granite_moe_rope", "grpc", StateReturn.DEMAND),
        ("granite_moe_rope", "grpc", StateReturn.AUTO),
        ("granite_moe_rope", "nixl", StateReturn.DEMAND),
        ("granite_moe_rope", "local", StateReturn.DEMAND),
        ("nemotron_latent", "grpc", StateReturn.DEMAND),
        ("nemotron_latent", "nixl", StateReturn.OFF),
        ("llama_stretched", "grpc", StateReturn.DEMAND),
    ],
)
async def test_every_turn_of_a_conversation_is_as_if_it_were_the_first(
    oracle: Oracle, name: str, channel: str, returns: StateReturn, seeded: random.Random
) -> None:
    folder = oracle.checkpoint(name)
    vocab = SPECS[name].config["vocab_size"]
    options: dict[str, Any] = {
        "page_size": 16,
        "chunk": 32,
        "max_model_len": 512,
        "pages": 5000,
        "cached_snapshots": 40,
        "layer_group_bytes": 1,
        "channel": channel,
        "hub": LocalHub() if channel == "local" else None,
        "worker": {"state_return": returns, "send_snapshots": SendSnapshots.LAST},
    }
    prefill = prefill_worker(model=Gated(folder), tickets=2, **options)
    decode = decode_worker(model=Gated(folder), **options)
    conversation: tuple[int, ...] = ()
    answered = 0  # tokens of which the rank had the state when the last turn ended
    async with running(prefill, decode), session(decode) as router:
        for turn in range(TURNS):
            conversation += tuple(seeded.randrange(3, vocab) for _ in range(30))
            _, answer = await router.start(conversation, greedy(STEPS), [prefill])
            finished = await answer.end()
            oracle.assert_all_greedy(folder, [conversation], [answer.token_ids], STEPS)
            if turn and returns is StateReturn.DEMAND:
                assert finished.usage.cached_tokens >= answered
            conversation += tuple(answer.token_ids)
            answered = finished.state_tokens
            assert answered
        await decode.clean()
        await prefill.clean()
    assert decode.engine.counters.transfer_hit_tokens >= 30
