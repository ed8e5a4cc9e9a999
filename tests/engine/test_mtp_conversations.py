"""Random conversations of engines that draft by multi-token prediction, and of engines with trees
of drafts, in pools so small that requests wait, are preempted and lose what is cached of them:
plain decoding's answers."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from engine.engines import assert_clean, run, tokens_of
from engine.test_mtp_drafts import (
    answered,
    assert_same_tokens,
    options,
    poisoned,
    random_prompt,
    random_sampling,
)
from engine.test_oracle import load
from mtp_models import MtpCheckpoints

from baton.engine.engine import Engine
from baton.engine.request.events import Event
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from engine import test_mtp_drafts as drafts

TOGETHER = 10  # conversations of one engine
TURNS = 4
LONGEST = 200  # tokens of a conversation that goes on
MTP, NGRAM = SpeculativeAlgorithm.MTP, SpeculativeAlgorithm.NGRAM
CANCELLED = 0.25  # of the turns
TREES = (2, 3, 4)  # continuations of a request

folder = drafts.folder


def small_engine(folder: Path, rng: random.Random, topk: int) -> Engine:
    return load(
        folder,
        pages=rng.choice([18, 22, 40]),
        max_running=rng.choice([2, 5, 8]),
        cached_snapshots=rng.choice([1, 3, 6]),
        chunked_prefill_size=rng.choice([16, 48, 64]),
        mamba_track_interval=16,
        overlap=rng.random() < 0.7,
        mtp=True,
        speculative_algorithm=MTP if topk == 1 else rng.choice([MTP, NGRAM]),
        speculative_num_draft_tokens=rng.choice([2, 3, 4, 8] if topk == 1 else [3, 5, 8, 16]),
        speculative_eagle_topk=topk,
        speculative_num_steps=None if topk == 1 else rng.choice([1, 2, 3, 5, None]),
        canary=True,
    )


def converse(plain: Engine, engine: Engine, rng: random.Random) -> None:
    """Let conversations go on side by side; some turns are cancelled somewhere."""
    texts = [random_prompt(rng, rng.randint(1, 90)) for _ in range(TOGETHER)]
    for turn in range(TURNS):
        specs = []
        for number, text in enumerate(texts):
            sampling = random_sampling(rng, rng.randint(1, 3))
            priority = rng.choice([0, 0, 0, 2])
            specs.append(RequestSpec(f"{turn}-{number}", text, sampling, priority=priority))
        wanted = answered(plain, specs)
        cancelled = [spec for spec in specs if rng.random() < CANCELLED]
        kept = [spec for spec in specs if spec not in cancelled]
        left = list(cancelled)

        def cancel(_: list[Event], left: list[RequestSpec] = left) -> None:
            if left and rng.random() < 0.2:
                engine.cancel(left.pop().request_id, "no longer wanted")

        for spec in specs:
            engine.submit(spec)
        found = run(engine, cancel)
        assert_same_tokens(kept, wanted, found)
        for number, spec in enumerate(specs):
            text = (*spec.prompt_ids, *tokens_of(wanted, spec.request_id))
            goes_on = spec in kept and len(text) < LONGEST
            texts[number] = (*text, *random_prompt(rng, 5)) if goes_on else random_prompt(rng, 30)
    assert_clean(engine)


def converse_in_pools(
    folder: Path, pools: int, rng: random.Random, topks: Sequence[int] = (1,)
) -> Counter[str]:
    """Hold conversations in so many engines of random sizes, and return what came about. topks: of
    trees, among which each engine has one; 1: chains."""
    plain, counted = poisoned(options(folder)), Counter[str]()
    for _ in range(pools):
        engine = small_engine(folder, rng, rng.choice(topks))
        converse(plain, engine, rng)
        counted["right"] += engine.counters.draft_tokens_accepted
        counted["preempted"] += engine.counters.preemptions
        counted["hit"] += engine.counters.state_hit_tokens
        engine.close()
    print(dict(counted))
    return counted


def test_conversations_give_the_answers_of_plain_decoding(
    folder: Path, seeded: random.Random
) -> None:
    counted = converse_in_pools(folder, 2, seeded)
    assert counted["right"] > 50


def test_so_do_conversations_with_trees(folder: Path, seeded: random.Random) -> None:
    counted = converse_in_pools(folder, 2, seeded, TREES)
    assert counted["right"] > 50


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("topks", [(1,), TREES], ids=["chains", "trees"])
@pytest.mark.parametrize("name", ["qwen3_next_moe", "nemotron_moe", "deepseek3_grouped"])
def test_so_do_three_hundred(
    mtp_checkpoints: MtpCheckpoints,
    folder: Path,
    name: str,
    topks: Sequence[int],
    seeded: random.Random,
) -> None:
    counted = converse_in_pools(mtp_checkpoints.folder(name), 300 // TOGETHER, seeded, topks)
    assert counted["right"] > 1000 and counted["preempted"] and counted["hit"]
