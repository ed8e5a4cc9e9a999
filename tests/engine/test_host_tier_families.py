"""The host's tier beside real layers: a prefix that came back gives the bits of a cold prompt, and
the trained model that keeps its facts in the SSM state knows them still."""

from itertools import product

import pytest
from engine.engines import greedy
from engine.host_tiers import (
    assert_every_layer_is_there,
    forget_device,
    saved,
    tier_of,
    without_tier,
)
from engine.test_lost_state import NUMBER, load, number_right
from engine.test_oracle import load as load_checkpoint
from oracle.reference import Oracle
from oracle.specs import SPECS
from recall_models import COURSES

from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.layout.token_key import token_key
from recall.questions import Question, held_out

COURSE = COURSES["state_recall"]
DEPTH = 128  # on the grid of every checkpoint, with pages of 16 and of 128 tokens
ANSWER = 8
GIB = 1 << 30
Told = tuple[list[int], list[float | None]]


@pytest.fixture(autouse=True)
def copying_is_always_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes these models no time, so what is sooner would be left to chance."""
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)


def asked(engine: Engine, prompt: tuple[int, ...]) -> tuple[Told, int]:
    """Return the answer's tokens with their log probabilities, and the prompt's cached tokens."""
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True, logprobs=0)
    (output,) = engine.generate([prompt], sampling)
    scores = [each.logprob for each in output.logprobs]
    return (list(output.token_ids), scores), output.finished.usage.cached_tokens


BOTH_SIDES_OF_THE_GRID = (
    "granite_dense_nope",  # Mamba-2 and attention
    "mamba2_grouped",  # no attention: pages take no bytes
    "qwen3_next_odd",  # gated delta nets
    "kimi_odd",  # decay by key channel, latent attention
    "lfm2_tied",  # short convolutions
    "llama_tied",  # attention alone: no states
    "deepseek3_odd_dense",  # latent attention alone
)
"""Checkpoints, one of each kind of memory, whose pages are smaller and larger than the grid."""


@pytest.mark.parametrize(
    ("name", "page"), [*product(SPECS, [16]), *product(BOTH_SIDES_OF_THE_GRID, [128])]
)
def test_what_came_back_gives_the_bits_of_a_cold_prompt(
    oracle: Oracle, name: str, page: int
) -> None:
    folder = oracle.checkpoint(name)
    vocab = SPECS[name].config["vocab_size"]
    prompt = tuple(3 + number * 37 % (vocab - 3) for number in range(DEPTH + 2))
    cold = load_checkpoint(folder, page_size=page, prefix_caching=False)
    expected, _ = asked(cold, prompt)
    model = cold.plan.model_config
    engine = load_checkpoint(
        folder,
        page_size=page,
        host_cache_bytes=GIB // 64 if model.attention else 0,
        host_cache_state_bytes=GIB // 64 if model.recurrent else 0,
    )
    assert asked(engine, prompt) == (expected, 0)
    assert asked(engine, prompt) == (expected, DEPTH), "the device's"
    assert_every_layer_is_there(saved(engine), prompt)
    forget_device(engine)
    assert asked(engine, prompt) == (expected, DEPTH), "the host's"
    assert engine.counters.host_hit_tokens == DEPTH
    assert asked(engine, prompt) == (expected, DEPTH), "the device's, after the host's"
    assert engine.counters.host_hit_tokens == DEPTH
    forget_device(saved(engine))
    with without_tier(engine):
        asked(engine, prompt[: DEPTH // 2 + 1])
    hit = engine.prefixes.pools.cache.hold_kv(token_key(prompt))
    engine.prefixes.pools.cache.unlock_pages(hit[0])
    assert hit[0].depth == (DEPTH // 2 if page <= DEPTH // 2 else 0)
    assert asked(engine, prompt) == (expected, DEPTH), (
        "some pages the device's, the rest the host's"
    )
    engine.close()
    cold.close()


@pytest.mark.parametrize(("lost", "least", "most"), [(False, 0.95, 1.0), (True, 0.0, 0.5)])
def test_facts_in_the_ssm_state_survive_the_host(lost: bool, least: float, most: float) -> None:
    """Zeroing the SSM state in the host's memory costs at least half of the answers."""
    tasks = COURSE.learnt
    questions: list[Question] = [
        held_out(number, tasks[number % len(tasks)], DEPTH) for number in range(NUMBER)
    ]
    engine = load(
        cached_snapshots=2 * NUMBER,
        host_cache_bytes=GIB // 8,
        host_cache_state_bytes=GIB // 8,
    )
    engine.generate([tuple(q.prompt_ids) for q in questions], greedy(1))
    forget_device(saved(engine))
    if lost:
        for component in engine.plan.slot_layout.components:
            if component.name == "ssm":
                end = component.offset + component.nbytes
                tier_of(engine).memory.states[:, component.offset : end] = 0
    sampling = [greedy(len(q.answer)) for q in questions]
    outputs = engine.generate([tuple(q.prompt_ids) for q in questions], sampling)
    assert all(output.finished.usage.cached_tokens for output in outputs)
    assert engine.counters.host_hit_tokens
    answers = [list(output.token_ids) for output in outputs]
    right = number_right(questions, answers)
    print(
        f"{right} of {NUMBER} are right, of {engine.counters.host_hit_tokens} tokens from the host"
    )
    assert least * NUMBER <= right <= most * NUMBER
    engine.close()
