"""Hand-offs between workers whose weights have 8 bits, in their files or rounded at load, on other
numbers of ranks, and the refusals between weights of other formats."""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
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
from eight_bit_packing import Pair, in_blocks, keeps_eight_bit, pack
from engine.engines import greedy
from engine.models.test_fp8_kept import forms_of
from engine.models.test_int8_files import section
from oracle.reference import Oracle
from worker.cluster import decode_worker, prefill_worker

from baton.engine.engine import Engine
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState
from engine.models import test_rounding as rounding

BLOCK = [24, 32]  # divides no side, so that a rank's part begins within a block
GROUPED: dict[str, Any] = {"strategy": "group", "group_size": BLOCK[1]}


@pytest.fixture(scope="module")
def plain(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "plain"
    shutil.copytree(oracle.checkpoint(NAME), folder)
    return folder


@pytest.fixture(scope="module")
def pairs(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Checkpoints in 8 bits, and the same ones expanded."""
    fp8 = {"quant_method": "fp8", "weight_block_size": BLOCK}
    forms = dict(forms_of(plain))
    integers = in_blocks(1, BLOCK[1], stored=torch.int8)
    made = {}
    for name, kinds, scale, stated in (
        ("fp8", forms, "_scale_inv", fp8),
        ("int8", dict.fromkeys(forms, integers), "_scale", section(**GROUPED)),
    ):
        own = shutil.copytree(plain, tmp_path_factory.mktemp(name) / "plain")
        made[name] = pack(own, kinds, scale, {"quantization_config": stated})
    return made


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("name", ["fp8", "int8"])
async def test_turns_have_the_answers_of_the_expanded_weights(
    oracle: Oracle,
    pairs: dict[str, Pair],
    name: str,
    p: int,
    d: int,
    channel: str,
    seeded: random.Random,
) -> None:
    pair = pairs[name]
    engines = [Engine.load(config(pair.packed, ranks)) for ranks in (p, d)]
    await check_turns(oracle, pair.expanded, engines, channel, seeded)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("form", rounding.FORMS)
async def test_so_have_turns_with_weights_that_are_rounded_at_load(
    oracle: Oracle,
    plain: Path,
    tmp_path: Path,
    form: WeightFormat,
    p: int,
    d: int,
    channel: str,
    seeded: random.Random,
) -> None:
    if form is WeightFormat.FP8 and not keeps_eight_bit(torch.float32):
        pytest.skip("this CPU's products do not read 8 bits")
    own = shutil.copytree(plain, tmp_path / "plain")
    reference = rounding.rounded_before(own, rounding.FORMS[form])
    engines = [Engine.load(replace(config(plain, ranks), weight_format=form)) for ranks in (p, d)]
    await check_turns(oracle, reference, engines, channel, seeded)


async def check_turns(
    oracle: Oracle, reference: Path, engines: list[Engine], channel: str, rng: random.Random
) -> None:
    try:
        for engine in engines:
            poison(engine)
        await take_turns(oracle, reference, engines[0], engines[1], channel, rng)
    finally:
        for engine in engines:
            engine.close()


@pytest.mark.parametrize("original", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["fp8", "int8"])
async def test_a_quantised_checkpoint_and_its_original_refuse_each_other(
    plain: Path, pairs: dict[str, Pair], name: str, original: str, seeded: random.Random
) -> None:
    configs = [
        config(plain if role == original else pairs[name].packed, 1)
        for role in ("prefill", "decode")
    ]
    said = "quantised by fp8" if name == "fp8" else "quantised by compressed-tensors INT8"
    await check_refusal(configs, said, seeded)


@pytest.mark.parametrize("rounds", ["prefill", "decode"])
async def test_weights_that_one_worker_rounds_are_refused_by_the_other(
    plain: Path, rounds: str, seeded: random.Random
) -> None:
    configs = [
        replace(
            config(plain, 1),
            weight_format=WeightFormat.INT8 if role == rounds else WeightFormat.AUTO,
        )
        for role in ("prefill", "decode")
    ]
    await check_refusal(configs, "rounded to int8 at load", seeded)


async def check_refusal(configs: list[EngineConfig], said: str, rng: random.Random) -> None:
    """The error names what differs and what would work, before any state moves. said: of the
    weights of one of both"""
    engines = [Engine.load(each) for each in configs]
    try:
        prefill, decode = prefill_worker(loaded=engines[0]), decode_worker(loaded=engines[1])
        async with joined(prefill, decode) as router:
            _, answer = await router.start(prompt(rng, 40), greedy(STEPS), [prefill])
            error = (await answer.end()).error
            for worker in (prefill, decode):
                await worker.clean()
        assert error.code == common_pb2.INCOMPATIBLE and not answer.token_ids
        weights = [worker.context.hello.fingerprint["weights"] for worker in (prefill, decode)]
        assert "weights: ours {}, theirs {}".format(*weights) in error.message
        assert [said in text for text in weights].count(True) == 1
        assert "Start both with the same checkpoint" in error.message
        assert decode.been_in(HandoffState.ACTIVE) == 0
    finally:
        for engine in engines:
            engine.close()
