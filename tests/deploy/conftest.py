"""A model of two layers, and fresh random inputs."""

import random
from pathlib import Path

import pytest
from deploy.tiny_worker import TINY

from baton.bench.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TINY)


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)
