"""Recurrent state in the prefix cache: where it is kept, who may resume from it, what it costs.

The hash model's tokens depend on every token behind the state, so a wrong snapshot shows.
"""

import random
from dataclasses import replace

import pytest
from engine.engines import (
    assert_clean,
    finish_of,
    greedy,
    make_engine,
    random_prompt,
    run,
    tokens_of,
)
from engine.hash_model import VOCAB, HashModel, expected_tokens, hash_config

from baton.core.errors import ConfigError
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.layout.grids import Strategy
from baton.engine.layout.owners import Owner
from baton.engine.request.events import PromptScored
from baton.engine.request.request import RequestSpec


def ask(engine: Engine, name: str, prompt: tuple[int, ...], count: int = 5) -> int:
    """Generate, check against the definition, return the cached tokens."""
    engine.submit(RequestSpec(name, prompt, greedy(count)))
    events = run(engine)
    assert tokens_of(events, name) == expected_tokens(HashModel(), prompt, count), name
    return finish_of(events, name).usage.cached_tokens


def drawn(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def test_a_prompt_that_comes_again_is_computed_from_its_last_snapshot(
    seeded: random.Random,
) -> None:
    engine = make_engine()
    prompt = drawn(seeded, 70)
    assert ask(engine, "cold", prompt) == 0
    assert ask(engine, "warm", prompt) == 64
    assert engine.counters.state_hit_tokens == 64


def test_a_prompt_that_ends_on_the_grid_computes_its_last_chunk_again(
    seeded: random.Random,
) -> None:
    engine = make_engine(chunk=512, snapshots_per_prefill=2)
    prompt = drawn(seeded, 128)
    ask(engine, "cold", prompt)
    assert ask(engine, "warm", prompt) == 112


def test_the_second_request_with_a_shared_prefix_hits_at_the_last_grid_depth_before_the_branch(
    seeded: random.Random,
) -> None:
    engine = make_engine(chunk=512, snapshots_per_prefill=20, cached_snapshots=64)
    shared = drawn(seeded, 257)
    for number, cached in enumerate((0, 256, 256)):
        assert ask(engine, f"r{number}", shared + drawn(seeded, 60)) == cached


def test_with_one_snapshot_a_prefill_the_third_request_hits(seeded: random.Random) -> None:
    engine = make_engine(chunk=512, snapshots_per_prefill=1, cached_snapshots=64)
    shared = drawn(seeded, 257)
    for number, cached in enumerate((0, 0, 256)):
        assert ask(engine, f"r{number}", shared + drawn(seeded, 60)) == cached
    assert engine.counters.branch_points == 1


def test_generated_tokens_are_part_of_the_next_turns_prefix(seeded: random.Random) -> None:
    engine = make_engine()
    prompt = drawn(seeded, 20)
    engine.submit(RequestSpec("first", prompt, greedy(50)))
    answer = tokens_of(run(engine), "first")
    turn = (*prompt, *answer, *drawn(seeded, 9))
    assert ask(engine, "second", turn) == 64  # decode grid 16: tracked at 32, 48 and 64


def test_a_snapshot_of_a_decoding_row_is_taken_at_the_decode_grid_alone(
    seeded: random.Random,
) -> None:
    engine = make_engine(mamba_track_interval=32)
    prompt = drawn(seeded, 10)
    engine.submit(RequestSpec("a", prompt, greedy(60)))
    run(engine)
    assert engine.counters.snapshots_donated == 2  # at 32 and 64


def test_running_requests_share_a_prefix_while_the_first_still_decodes(
    seeded: random.Random,
) -> None:
    engine = make_engine(chunk=128)
    prompt = drawn(seeded, 100)
    engine.submit(RequestSpec("a", prompt, greedy(30)))
    engine.step()
    engine.step()
    engine.submit(RequestSpec("b", prompt, greedy(30)))
    events = run(engine)
    expected = expected_tokens(HashModel(), prompt, 30)
    assert finish_of(events, "b").usage.cached_tokens == 96
    assert tokens_of(events, "b") == expected


def test_prompt_scores_cap_the_hit_below_the_first_scored_position(seeded: random.Random) -> None:
    engine = make_engine()
    prompt = drawn(seeded, 70)
    ask(engine, "cold", prompt)
    for start, cached in ((0, 0), (16, 0), (17, 16), (40, 32), (69, 64)):
        name = f"from {start}"
        sampling = replace(greedy(2), prompt_logprobs_start=start)
        engine.submit(RequestSpec(name, prompt, sampling))
        events = run(engine)
        assert finish_of(events, name).usage.cached_tokens == cached, start
        cold = make_engine(prefix_caching=False)
        cold.submit(RequestSpec(name, prompt, sampling))
        scores = [e for e in events if isinstance(e, PromptScored)]
        colds = [e for e in run(cold) if isinstance(e, PromptScored)]
        assert [s for e in scores for s in e.scores.tokens] == [
            s for e in colds for s in e.scores.tokens
        ]


def test_without_the_cache_nothing_is_kept(seeded: random.Random) -> None:
    engine = make_engine(prefix_caching=False)
    prompt = drawn(seeded, 70)
    ask(engine, "a", prompt)
    assert ask(engine, "b", prompt) == 0
    assert engine.status().pages[Owner.CACHE] == engine.status().slots[Owner.CACHE] == 0


def test_no_buffer_caches_the_live_state_of_what_has_ended(seeded: random.Random) -> None:
    engine = make_engine(mamba_scheduler_strategy=Strategy.NO_BUFFER, page_size=1, pages=900)
    prompt = drawn(seeded, 37)
    engine.submit(RequestSpec("first", prompt, greedy(6)))
    answer = tokens_of(run(engine), "first")
    assert ask(engine, "second", (*prompt, *answer, 3, 4)) == 37 + 5
    assert ask(engine, "third", prompt) == 0


def test_a_state_in_the_only_slot_gives_way_to_the_request_that_would_resume_from_it(
    seeded: random.Random,
) -> None:
    engine = make_engine(
        mamba_scheduler_strategy=Strategy.NO_BUFFER,
        page_size=1,
        pages=200,
        max_running=1,
        cached_snapshots=0,
    )
    assert engine.states.ids.size == 2
    prompt = drawn(seeded, 20)
    ask(engine, "first", prompt)
    assert engine.status().slots[Owner.CACHE] == 1
    assert ask(engine, "second", (*prompt, *expected_tokens(HashModel(), prompt, 5), 3)) == 0


def test_no_buffer_needs_pages_of_one_token() -> None:
    with pytest.raises(ConfigError, match="page-size 1"):
        make_engine(mamba_scheduler_strategy=Strategy.NO_BUFFER)


def test_a_page_size_that_does_not_fit_the_chunk_is_refused() -> None:
    with pytest.raises(ConfigError, match="use --page-size 8"):
        make_engine(page_size=12)


def test_flushing_forgets_everything(seeded: random.Random) -> None:
    engine = make_engine()
    prompt = drawn(seeded, 70)
    ask(engine, "a", prompt)
    assert engine.flush_cache()
    assert ask(engine, "b", prompt) == 0


def test_a_full_pool_evicts_the_cache_before_anything_waits(seeded: random.Random) -> None:
    engine = make_engine(pages=40, max_running=2, cached_snapshots=0, snapshots_per_prefill=1)
    for number in range(12):
        ask(engine, f"r{number}", drawn(seeded, 100), count=20)
    assert engine.counters.snapshots_evicted and engine.counters.pages_evicted
    assert engine.counters.preemptions == 0


def test_a_step_that_fails_leaves_no_snapshot_behind(seeded: random.Random) -> None:
    model = HashModel()
    engine = make_engine(model, overlap=False)
    model.fail_on = {1}
    prompt = drawn(seeded, 70)
    engine.submit(RequestSpec("bad", prompt, greedy(4)))
    engine.plan_step()
    with pytest.raises(RuntimeError) as failed:
        engine.run_step()
    engine.fail_step(failed.value)
    assert_clean(engine)
    assert ask(engine, "good", prompt) == 0


def test_conversations_in_any_order_give_the_tokens_of_the_definition(
    seeded: random.Random,
) -> None:
    """Many turns of some conversations, cancelled and preempted, in a pool that is too small."""
    engine = make_engine(
        HashModel(hash_config(max_model_len=512)),
        pages=40, max_running=4, chunk=24, cached_snapshots=5,
    )  # fmt: skip
    turns: dict[int, tuple[int, ...]] = {n: drawn(seeded, 40) for n in range(4)}
    asked: dict[str, tuple[tuple[int, ...], int]] = {}
    events = []
    for number in range(60):
        talk = seeded.randrange(4)
        if len(turns[talk]) > 200:
            turns[talk] = turns[talk][: seeded.randrange(20, 100)]
        prompt = turns[talk] + random_prompt(seeded, 1, 20)
        count = seeded.randint(1, 70)
        name = f"r{number}"
        asked[name] = prompt, count
        engine.submit(RequestSpec(name, prompt, greedy(count)))
        turns[talk] = (*prompt, *expected_tokens(HashModel(), prompt, count))
        for _ in range(seeded.randrange(20)):
            events += engine.step()
            assert_clean(engine)
        if seeded.random() < 0.2:
            engine.cancel(name, "changed its mind")
            asked.pop(name)
    events += run(engine)
    for name, (prompt, count) in asked.items():
        assert tokens_of(events, name) == expected_tokens(HashModel(), prompt, count), name
    assert engine.counters.state_hit_tokens and engine.counters.preemptions
    status = engine.status()
    for owner in (Owner.LIVE, Owner.TRACK, Owner.TICKET):
        assert status.slots[owner] == status.pages[owner] == 0


def test_a_hand_off_reads_its_own_pages_even_where_the_cache_has_the_same(
    seeded: random.Random,
) -> None:
    engine = make_engine(chunk=128)
    prompt = drawn(seeded, 100)
    specs = [RequestSpec(name, prompt, greedy(8), hold=True) for name in ("a", "b")]
    for spec in specs:
        engine.submit(spec)
    engine.step()
    before = {spec.request_id: engine.parked_state(spec.request_id) for spec in specs}
    run(engine)
    for spec in specs:
        assert (
            engine.parked_state(spec.request_id).state.pages == before[spec.request_id].state.pages
        )
        engine.release(spec.request_id)
        assert_clean(engine)
    assert engine.status().pages[Owner.LIVE] == 0


def test_sampled_tokens_do_not_depend_on_a_hit(seeded: random.Random) -> None:
    prompt = drawn(seeded, 70)
    sampling = SamplingParams(
        temperature=1.3, top_p=0.9, seed=seeded.getrandbits(64), max_tokens=30,
        presence_penalty=0.5, ignore_eos=True,
    )  # fmt: skip
    engine = make_engine()
    answers = []
    for name in ("cold", "warm"):
        engine.submit(RequestSpec(name, prompt, sampling))
        answers.append(tokens_of(run(engine), name))
    assert answers[0] == answers[1]
