"""A fixture of fresh random inputs, for each folder's conftest.py to take."""

import random

import pytest
from ragged_batches import seeded


@pytest.fixture
def rng() -> random.Random:
    """A generator whose seed a failing test prints; torch's is seeded alike."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return seeded(seed)
