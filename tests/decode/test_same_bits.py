"""A prompt that one worker computes and another answers: the bits of one engine, over each channel.

Log probabilities are compared as the bytes of their messages.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from decode.test_unequal_ranks import CHANNELS, joined, poison
from engine.engines import assert_clean, greedy
from engine.models.test_shards import DIVIDED
from engine.test_same_bits import CASES, ONE_A_FAMILY, as_name
from oracle.reference import LOGIT_BOUND, Oracle
from oracle.specs import DENSE, SPECS
from worker.cluster import Answer, decode_worker, prefill_worker

from baton.core.logprobs import TokenLogprob
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.output import Output
from baton.engine.settings.config import EngineConfig
from baton.kernels.native.library import load as library
from baton.rpc.convert import logprob_from_proto, logprob_to_proto
from baton.transfer.channels import frames
from baton.transfer.channels.grpc import sender
from baton.transfer.handoff import HandoffState

LENGTHS = (3, 100, 170)
TOKENS = 24
Prompt = tuple[int, ...]
EVERY_RUN = [(name, torch.bfloat16) for name in ONE_A_FAMILY]
# In every run bfloat16, of one checkpoint of each family: what is kept in it is rounded.
OF_ONE = [
    pytest.param(*case.values, marks=() if case.values in EVERY_RUN else pytest.mark.chaos)
    for case in CASES
]
# Ranks start a process each: one family does it in every run.
DTYPES = (torch.float32, torch.bfloat16)
OF_TWO = [
    pytest.param(name, dtype, marks=() if name == "granite_moe_nope" else pytest.mark.chaos)
    for name, ranks in DIVIDED
    for dtype in DTYPES
    if ranks == 2
]
OF_OTHERS = [
    pytest.param(name, marks=() if name == "llama_tied" else pytest.mark.chaos)
    for name, ranks in DIVIDED
    if ranks == 2 and name in DENSE
]


@pytest.fixture(autouse=True)
def _native() -> None:
    if library() is None:
        pytest.skip("no C++ compiler")


@contextmanager
def engines(folder: Path, dtype: torch.dtype, ranks: tuple[int, ...]) -> Iterator[list[Engine]]:
    """Engines of a prefill worker, which cuts prompts and sends each layer by itself, of a decode
    worker, and, of three, of a prefill worker that sends a prompt in one piece."""
    config = EngineConfig(
        model=folder,
        dtype=dtype,
        page_size=16,
        max_running=8,
        chunked_prefill_size=64,
        mamba_track_interval=64,
        memory_bytes=1 << 28,
        cached_snapshots=6,
        snapshots_per_prefill=4,
        max_model_len=512,
        tickets=4,
    )
    made: list[Engine] = []
    try:
        cuts = ((64, 1), (512, 1), (512, config.layer_group_bytes))
        for tp, (chunk, group) in zip(ranks, cuts, strict=False):
            cut = replace(config, chunked_prefill_size=chunk, layer_group_bytes=group)
            made.append(Engine.load(replace(cut, tp=tp)))
        yield made
    finally:
        for engine in made:
            engine.close()


def prompts_of(name: str, rng: random.Random) -> list[Prompt]:
    vocab = SPECS[name].config["vocab_size"]
    return [tuple(rng.randrange(3, vocab) for _ in range(length)) for length in LENGTHS]


def alone(
    engine: Engine, prompts: Sequence[Prompt], draws: Sequence[SamplingParams]
) -> list[Output]:
    outputs = []
    for prompt, params in zip(prompts, draws, strict=True):
        assert engine.flush_cache()
        poison(engine)
        outputs += engine.generate([prompt], params)
    assert_clean(engine)
    assert engine.flush_cache()
    return outputs


async def handed_over(
    made: Sequence[Engine], channel: str, prompts: Sequence[Prompt], draws: Sequence[SamplingParams]
) -> list[Answer]:
    for engine in made:
        poison(engine)
    prefill = prefill_worker(loaded=made[0], channel=channel)
    decode = decode_worker(loaded=made[1], channel=channel)
    async with joined(prefill, decode) as router:
        started = [
            await router.start(prompt, params, [prefill])
            for prompt, params in zip(prompts, draws, strict=True)
        ]
        for _, answer in started:
            await answer.end()
        for worker in (prefill, decode):
            await worker.clean()
        assert decode.been_in(HandoffState.ACTIVE) == len(prompts)
    return [answer for _, answer in started]


def as_bytes(logprobs: Sequence[TokenLogprob]) -> list[bytes]:
    assert len(logprobs) == TOKENS
    return [logprob_to_proto(each).SerializeToString(deterministic=True) for each in logprobs]


def said(answer: Answer) -> list[TokenLogprob]:
    return [logprob_from_proto(each) for each in answer.logprobs]


@contextmanager
def counted_calls(whole: bool) -> Iterator[list[int]]:
    """Count the messages that have all of a hand-off; none may have unless `whole`."""
    joined: list[int] = []
    encode = frames.encode_several

    def counted(parts: Any) -> bytes:
        joined.append(len(message := encode(parts)))
        return message

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(frames, "encode_several", counted)
        if not whole:
            patched.setattr(sender, "WHOLE_BYTES", -1)
        yield joined


async def compare(
    folder: Path, name: str, dtype: torch.dtype, ranks: int, rng: random.Random
) -> None:
    prompts = prompts_of(name, rng)
    params = SamplingParams(max_tokens=TOKENS, top_p=0.95, ignore_eos=True, logprobs=5)
    draws = [replace(params, seed=rng.getrandbits(63)) for _ in prompts]
    with engines(folder, dtype, (ranks, ranks, ranks)) as (in_parts, decode, whole):
        wanted = alone(decode, prompts, draws)
        for channel, prefill in (*((channel, in_parts) for channel in CHANNELS), ("grpc", whole)):
            with counted_calls(prefill is whole) as calls:
                found = await handed_over((prefill, decode), channel, prompts, draws)
            for output, answer in zip(wanted, found, strict=True):
                assert answer.token_ids == list(output.token_ids), channel
                assert as_bytes(said(answer)) == as_bytes(output.logprobs), channel
            assert bool(calls) == (prefill is whole)


@pytest.mark.parametrize(("name", "dtype"), OF_ONE, ids=as_name)
async def test_a_hand_over_changes_no_bit(
    oracle: Oracle, name: str, dtype: torch.dtype, seeded: random.Random
) -> None:
    await compare(oracle.checkpoint(name), name, dtype, 1, seeded)


@pytest.mark.parametrize(("name", "dtype"), OF_TWO, ids=as_name)
async def test_a_hand_over_between_two_ranks_and_two_changes_no_bit(
    oracle: Oracle, name: str, dtype: torch.dtype, seeded: random.Random
) -> None:
    await compare(oracle.checkpoint(name), name, dtype, 2, seeded)


@pytest.mark.parametrize("name", OF_OTHERS)
@pytest.mark.parametrize(("ranks", "channel"), [((1, 2), "nixl"), ((2, 1), "grpc")], ids=str)
async def test_other_numbers_of_ranks_give_the_same_tokens_with_other_last_bits(
    oracle: Oracle, name: str, ranks: tuple[int, int], channel: str, seeded: random.Random
) -> None:
    """Ranks add up parts of a sum, so that the bits differ."""
    folder, prompts = oracle.checkpoint(name), prompts_of(name, seeded)
    draws = [replace(greedy(TOKENS), logprobs=5)] * len(prompts)
    with engines(folder, torch.float32, ranks) as made:
        (one,) = (engine for engine in made if engine.followers is None)
        wanted = alone(one, prompts, draws)
        found = await handed_over(made, channel, prompts, draws)
    others = 0
    for prompt, output, answer in zip(prompts, wanted, found, strict=True):
        oracle.assert_all_greedy(folder, [prompt], [answer.token_ids], TOKENS)
        mine = said(answer)
        others += as_bytes(mine) != as_bytes(output.logprobs)
        pairs = takewhile(
            lambda pair: pair[0].token_id == pair[1].token_id,
            zip(mine, output.logprobs, strict=True),
        )
        for a, b in pairs:
            assert a.logprob is not None and b.logprob is not None
            assert abs(a.logprob - b.logprob) < 2 * LOGIT_BOUND
    assert others, "equal bits: then the documents should say so"
