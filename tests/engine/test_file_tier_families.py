"""Files beside real layers: a prefix that an earlier process has left gives the bits of a cold
prompt, and the trained model that keeps its facts in the SSM state knows them still."""

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from engine.engines import greedy
from engine.file_tiers import forget_memory, paths_in, written
from engine.host_tiers import assert_every_layer_is_there, saved
from engine.test_host_tier_families import (
    BOTH_SIDES_OF_THE_GRID,
    COURSE,
    DEPTH,
    GIB,
    asked,
    load_checkpoint,
)
from engine.test_lost_state import MODEL, NUMBER, load, number_right
from oracle.reference import Oracle
from oracle.specs import SPECS

from baton.engine.engine import Engine
from baton.engine.handoff.fetch_cost import FetchCost
from engine import test_lost_state
from recall.questions import held_out


@pytest.fixture(autouse=True)
def copying_is_always_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes these models no time, so what is sooner would be left to chance."""
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)


def options(folder: Path) -> dict[str, Any]:
    return {
        "file_cache": folder / "files",
        "file_cache_bytes": GIB,
        "state_key_file": folder / "key",
    }


@pytest.mark.parametrize(("name", "page"), [*product(BOTH_SIDES_OF_THE_GRID, [16, 128])])
def test_what_an_earlier_process_left_gives_the_bits_of_a_cold_prompt(
    oracle: Oracle, tmp_path: Path, name: str, page: int
) -> None:
    folder = oracle.checkpoint(name)
    vocab = SPECS[name].config["vocab_size"]
    prompt = tuple(3 + number * 37 % (vocab - 3) for number in range(DEPTH + 2))
    cold = load_checkpoint(folder, page_size=page, prefix_caching=False)
    expected, _ = asked(cold, prompt)
    model = cold.plan.model_config
    cold.close()

    def started() -> Engine:
        return load_checkpoint(
            folder,
            page_size=page,
            host_cache_bytes=GIB // 64 if model.attention else 0,
            host_cache_state_bytes=GIB // 64 if model.recurrent else 0,
            **options(tmp_path),
        )

    engine = started()
    assert asked(engine, prompt) == (expected, 0)
    written(engine).close()
    assert len(paths_in(tmp_path)) == 1
    engine = started()
    assert asked(engine, prompt) == (expected, DEPTH), "the file's"
    assert engine.counters.file_hit_tokens == DEPTH
    assert_every_layer_is_there(saved(engine), prompt)
    assert asked(engine, prompt) == (expected, DEPTH), "the device's, after the file's"
    forget_memory(engine)
    asked(engine, prompt[: DEPTH // 2 + 1])
    assert asked(engine, prompt) == (expected, DEPTH), "some pages the device's, the rest a file's"
    assert not engine.counters.file_failures
    engine.close()


def test_facts_in_the_ssm_state_survive_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last token of a prompt is always computed, so the first process is not given it: its
    newest snapshot would lie behind that."""
    tasks = COURSE.learnt
    questions = [held_out(number, tasks[number % len(tasks)], DEPTH) for number in range(NUMBER)]

    def started() -> Engine:
        return load(
            cached_snapshots=2 * NUMBER,
            host_cache_bytes=GIB // 8,
            host_cache_state_bytes=GIB // 8,
            **options(tmp_path),
        )

    monkeypatch.setattr(test_lost_state, "MODEL", shutil.copytree(MODEL, tmp_path / "model"))
    engine = started()
    for question in questions:
        engine.generate([tuple(question.prompt_ids[:-1])], greedy(1))
        written(engine)
    engine.close()
    engine = started()
    sampling = [greedy(len(q.answer)) for q in questions]
    outputs = engine.generate([tuple(q.prompt_ids) for q in questions], sampling)
    assert engine.counters.file_hit_tokens and not engine.counters.file_failures
    right = number_right(questions, [list(output.token_ids) for output in outputs])
    print(f"{right} of {NUMBER} are right, of {engine.counters.file_hit_tokens} tokens from files")
    assert right >= 0.95 * NUMBER
    engine.close()
