"""Hand-offs between workers whose checkpoint is in FP8, on other numbers of ranks, and the refusal
between an FP8 checkpoint and the one that it was made of."""

import random
import shutil
from pathlib import Path

import pytest
from decode.test_unequal_ranks import (
    CHANNELS,
    NAME,
    STEPS,
    config,
    joined,
    poison,
    prompt,
    take_turns,
)
from eight_bit_packing import Pair, pack
from engine.engines import greedy
from engine.models.test_fp8_kept import forms_of
from oracle.reference import Oracle
from worker.cluster import decode_worker, prefill_worker

from baton.engine.engine import Engine
from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState

BLOCK = [24, 32]  # divides no side, so that a rank's part begins within a block


@pytest.fixture(scope="module")
def pair(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    plain = tmp_path_factory.mktemp("fp8") / "plain"
    shutil.copytree(oracle.checkpoint(NAME), plain)
    section = {"quant_method": "fp8", "weight_block_size": BLOCK}
    return pack(plain, dict(forms_of(plain)), "_scale_inv", {"quantization_config": section})


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1)], ids=str)
async def test_turns_have_the_answers_of_the_expanded_weights(
    oracle: Oracle, pair: Pair, p: int, d: int, channel: str, seeded: random.Random
) -> None:
    engines = [Engine.load(config(pair.packed, ranks)) for ranks in (p, d)]
    try:
        for engine in engines:
            poison(engine)
        await take_turns(oracle, pair.expanded, engines[0], engines[1], channel, seeded)
    finally:
        for engine in engines:
            engine.close()


@pytest.mark.parametrize("original", ["prefill", "decode"])
async def test_a_checkpoint_in_fp8_and_its_original_refuse_each_other(
    pair: Pair, original: str, seeded: random.Random
) -> None:
    """The error names what differs and what would work, before any state moves."""

    def folder(role: str) -> Path:
        return pair.packed.with_name("plain") if role == original else pair.packed

    engines = [Engine.load(config(folder(role), 1)) for role in ("prefill", "decode")]
    try:
        prefill, decode = prefill_worker(loaded=engines[0]), decode_worker(loaded=engines[1])
        async with joined(prefill, decode) as router:
            _, answer = await router.start(prompt(seeded, 40), greedy(STEPS), [prefill])
            error = (await answer.end()).error
            for worker in (prefill, decode):
                await worker.clean()
        assert error.code == common_pb2.INCOMPATIBLE and not answer.token_ids
        weights = [worker.context.hello.fingerprint["weights"] for worker in (prefill, decode)]
        assert "weights: ours {}, theirs {}".format(*weights) in error.message
        assert [" quantised by fp8" in text for text in weights].count(True) == 1
        assert "Start both with the same checkpoint" in error.message
        assert decode.been_in(HandoffState.ACTIVE) == 0
    finally:
        for engine in engines:
            engine.close()
