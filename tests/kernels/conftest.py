"""Fixtures of the native operations' tests."""

import random

import pytest
from kernels.native_cases import PoisonedNative
from ragged_batches import seeded

from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native


@pytest.fixture(scope="module")
def native() -> Native:
    library = load()
    if library is None:
        pytest.skip("no C++ compiler")
    return PoisonedNative(library)


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return seeded(seed)
