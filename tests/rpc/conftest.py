import random
from collections.abc import Iterator

import pytest


@pytest.fixture
def seeded() -> Iterator[random.Random]:
    """Fresh random inputs; the seed is printed with a failing test's output."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    yield random.Random(seed)
