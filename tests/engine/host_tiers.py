"""Ways to have an engine's prefixes in the host's memory alone, or in the device's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine.engines import assert_clean, greedy, make_engine
from engine.hash_model import HashModel, expected_tokens
from kit.polling import wait_until

from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.engine import Engine
from baton.engine.layout.layout import Component
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


def assert_every_layer_is_there(
    engine: Engine, prompt: tuple[int, ...]
) -> tuple[set[int], set[int]]:
    """Compare what both memories hold of a prompt, byte for byte, component by component of slots
    and pages, so that no layer of a group can be left out. Return the layers of both.
    """
    tier, plan = tier_of(engine), engine.plan
    device, host = engine.prefixes.lend(SaltedPrefix(prompt)), tier.host.lend(SaltedPrefix(prompt))
    assert device is not None and host is not None
    here, there = device.state, host.state
    assert here.tokens == there.tokens and len(here.pages) == len(there.pages)
    slots = [(here.slot, there.slot)] if engine.prefixes.pools.stateful else []
    pages = list(zip(here.pages, there.pages, strict=True))
    layers: list[set[int]] = []
    for layout, ours, theirs, pairs in (
        (plan.slot_layout, engine.states.storage, tier.memory.states, slots),
        (plan.page_layout, engine.pages.storage, tier.memory.pages, pages),
    ):
        components: tuple[Component, ...] = layout.components
        layers.append({component.layer for component in components})
        for component in components:
            end = component.offset + component.nbytes
            for mine, copied in pairs:
                whole = ours[mine, component.offset : end]
                assert whole.any(), (component, "there is something to compare")
                assert whole.equal(theirs[copied, component.offset : end]), component
    engine.prefixes.give_back(device)
    tier.host.give_back(host)
    assert_clean(engine)
    return layers[0], layers[1]
