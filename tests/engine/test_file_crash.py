"""Processes that are killed while they write a file of a prefix."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine.engines import random_prompt
from engine.file_tiers import filed, paths_in
from engine.host_tiers import ask

from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.tiers.prefix_file import DRAFT

DEADLINE_S = 240
TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("step", "hit"), [("digest_of", 0), ("fsync", 0), ("replace", 0), ("_sync_folder", 48)]
)
def test_a_crash_costs_what_was_being_written(
    seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, hit: int
) -> None:
    prompts = [random_prompt(seeded, 50, 54) for _ in range(2)]
    told = [" ".join(map(str, prompt)) for prompt in prompts]
    ended = subprocess.run(
        [sys.executable, "-m", "engine.file_crash", str(tmp_path), step, *told],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        timeout=DEADLINE_S,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    drafts = [path for path in paths_in(tmp_path) if path.name.startswith(DRAFT)]
    assert len(drafts) == (step != "_sync_folder")
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)
    engine = filed(tmp_path)
    assert [ask(engine, prompt) for prompt in prompts] == [48, hit]
    assert not engine.counters.file_failures, "what is not whole is no file"
    engine.close()
