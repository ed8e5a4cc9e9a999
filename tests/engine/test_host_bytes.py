"""Bytes land where they belong and nowhere else, however they are copied."""

import random

import numpy as np
import pytest

from baton.engine.memory import host_bytes
from baton.engine.memory.host_bytes import PAST_CACHE_BYTES, HostBytes


@pytest.mark.parametrize("native", [True, False], ids=["native", "numpy"])
def test_a_copy_changes_its_target_and_no_byte_beside_it(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(host_bytes, "load", lambda: None)
    seed = random.randrange(2**32)
    print("seed", seed)
    rng, drawn = random.Random(seed), np.random.default_rng(seed)
    whole = drawn.integers(0, 256, 4 * PAST_CACHE_BYTES, np.uint8)
    pool = HostBytes(whole)
    for size in (0, 1, 63, PAST_CACHE_BYTES - 1, *(PAST_CACHE_BYTES + n for n in (0, 1, 63, 64))):
        for _ in range(8):
            # Every alignment: a message's payload begins behind its header.
            start, skip = rng.randrange(len(whole) - size + 1), rng.randrange(64)
            message = drawn.integers(0, 256, skip + size, np.uint8).tobytes()
            expected = whole.copy()
            expected[start : start + size] = np.frombuffer(message, np.uint8)[skip:]
            pool.put(start, memoryview(message)[skip:])
            assert np.array_equal(whole, expected), (size, start, skip)
            assert bytes(pool.view(start, size)) == message[skip:]


def test_what_does_not_fit_is_refused_before_a_byte_is_written() -> None:
    whole = np.zeros(2 * PAST_CACHE_BYTES, np.uint8)
    with pytest.raises(ValueError, match="broadcast"):
        HostBytes(whole).put(PAST_CACHE_BYTES + 1, memoryview(b"x" * PAST_CACHE_BYTES))
    assert not whole.any()
