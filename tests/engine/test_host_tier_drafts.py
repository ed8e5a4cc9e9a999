"""The host's tier beside drafts: a prefix that came back gives the answers of a cold prompt, and as
many right drafts, whose layer has states and KV of its own."""

from dataclasses import replace

import pytest
from engine.engines import greedy
from engine.host_tiers import assert_every_layer_is_there, forget_device, saved
from engine.test_mtp_acceptance import GRID, answered, cold, drafts_of, load, right, specs
from engine.test_oracle import load as load_checkpoint
from mtp_models import TRAINED
from oracle.reference import Oracle

from baton.engine.engine import Engine
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.settings.choices import SpeculativeAlgorithm

GIB = 1 << 30
DEPTH, TOKENS = 128, 40
FEW = tuple(range(3, 8))  # so that a text soon repeats itself


@pytest.fixture(autouse=True)
def copying_is_always_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes these models no time, so what is sooner would be left to chance."""
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)


@pytest.mark.parametrize("family", TRAINED)
def test_drafts_of_the_models_own_layer_are_as_right_after_the_host(family: str) -> None:
    """Its KV and the hidden state that it goes on from come back with the rest of a prefix."""
    events, expected = cold(family)
    plain = load(family)
    stateful = bool(plain.plan.model_config.recurrent)
    plain.close()
    engine = load(
        family, host_cache_bytes=GIB // 16, host_cache_state_bytes=GIB // 16 if stateful else 0
    )
    # An answer's snapshot would be copied in place of its prompt's.
    answered(engine, [replace(spec, sampling=greedy(1)) for spec in specs()])
    for spec in specs():
        assert_every_layer_is_there(saved(engine), spec.prompt_ids)
    forget_device(engine)
    before = engine.counters.host_hit_tokens
    events = answered(engine, specs())
    assert engine.counters.host_hit_tokens - before == GRID * len(specs())
    found = drafts_of(events, specs())
    assert found == expected and right(found)
    engine.close()


@pytest.mark.parametrize("name", ["qwen3_next_moe", "kimi_odd", "lfm2_tied", "bamba_odd"])
def test_drafts_from_the_text_change_no_answer_after_the_host(oracle: Oracle, name: str) -> None:
    folder = oracle.checkpoint(name)
    prompt = tuple(FEW[number % len(FEW)] for number in range(DEPTH + 2))
    sampling = greedy(TOKENS, allowed_token_ids=FEW)

    def tokens(engine: Engine) -> list[int]:
        (output,) = engine.generate([prompt], sampling)
        return list(output.token_ids)

    plain = load_checkpoint(folder, prefix_caching=False)
    expected = tokens(plain)
    plain.close()
    engine = load_checkpoint(
        folder,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        host_cache_bytes=GIB // 64,
        host_cache_state_bytes=GIB // 64,
        canary=True,
    )
    assert tokens(engine) == tokens(engine) == expected
    drafts = engine.counters.draft_tokens
    forget_device(saved(engine))
    assert tokens(engine) == expected
    assert engine.counters.host_hit_tokens == DEPTH
    assert engine.counters.draft_tokens > drafts > 0
    assert tokens(engine) == expected, "the device's, after the host's"
    engine.close()
