"""Ways to have an engine's prefixes in the host's memory alone, or in the device's."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.engines import assert_clean
from kit.polling import wait_until

from baton.engine.engine import Engine
from baton.engine.tiers.host_tier import HostTier


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
