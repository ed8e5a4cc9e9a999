"""Ways to have an engine's prefixes in the host's memory alone, or in the device's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine.engines import assert_clean, greedy, make_engine
from engine.hash_model import HashModel, expected_tokens
from kit.polling import wait_until

from baton.engine.engine import Engine
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.tiers.host_tier import HostTier

MIB = 1 << 20
DEADLINE = 60.0


def tiered(model: HashModel | None = None, **options: object) -> Engine:
    sizes = {"host_cache_bytes": MIB, "host_cache_state_bytes": MIB, "canary": True}
    return make_engine(model, **(sizes | options))  # type: ignore[arg-type]


def ask(engine: Engine, prompt: tuple[int, ...], count: int = 9) -> int:
    """Let the engine answer, and return how many tokens of the prompt were cached."""
    (output,) = engine.generate([prompt], greedy(count))
    assert list(output.token_ids) == expected_tokens(HashModel(), prompt, count)
    assert_clean(engine)
    return output.finished.usage.cached_tokens


def copies_wait(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let every copy wait until the event is set."""
    gate, put = threading.Event(), HostBytes.put

    def waits(self: HostBytes, start: int, payload: memoryview) -> None:
        assert gate.wait(DEADLINE)
        put(self, start, payload)

    monkeypatch.setattr(HostBytes, "put", waits)
    return gate


def tier_of(engine: Engine) -> HostTier:
    assert engine.tier is not None
    return engine.tier


def saved(engine: Engine) -> Engine:
    """Wait until all that the cache has is in the host's memory too."""

    def done() -> bool:
        tier_of(engine).collect()
        return not tier_of(engine).saving

    wait_until(done)
    assert_clean(engine)
    return engine


def forget_device(engine: Engine) -> None:
    """Evict all from the device's cache, and overwrite what it held."""
    pools = engine.prefixes.pools
    pools.cache.flush()
    assert not pools.cache.nodes
    engine.states.storage.random_(0, 256)
    engine.pages.storage.random_(0, 256)


@contextmanager
def without_tier(engine: Engine) -> Iterator[None]:
    """Let the engine compute what only its device is to have."""
    tier = tier_of(engine)
    engine.tier = engine.prefixes.pools.backup = None
    yield
    engine.tier = engine.prefixes.pools.backup = tier
