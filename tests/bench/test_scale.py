"""Bare engines, a process each: the yardstick of `baton bench scale`."""

import random
from pathlib import Path

import psutil

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.bench.cluster.bare_engine import bare_processes, output_rate
from baton.bench.cluster.load import Load
from baton.engine.settings.config import EngineConfig

TINY = {**GRANITE_SMALL, "hidden_size": 64, "mamba_n_heads": 4, "num_attention_heads": 4}


def test_bare_engines_write_what_they_are_told_and_are_gone_after(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", TINY)
    config = EngineConfig(folder, max_running=2, threads=1, memory_bytes=256 << 20)
    shape = Load(2, 2, 5, 4)
    prompts = [
        shape.draw(random.Random(random.randrange(1 << 32)), TINY["vocab_size"]) for _ in range(2)
    ]
    before = {child.pid for child in psutil.Process().children()}
    with bare_processes(config, 2) as processes:
        during = {child.pid for child in psutil.Process().children()} - before
        assert len(during) >= 2  # and the one that watches what they share
        assert output_rate(processes, shape, prompts) > 0
        for process, own in zip(processes, prompts, strict=True):
            process.begin(shape, own)
        assert [process.tokens() for process in processes] == [8, 8]
    alive = {child.pid for child in psutil.Process().children()}
    assert len(during & alive) <= 1
