"""Empties the prefix cache of one engine while nothing runs on it, or removes a part of it."""

import asyncio
import time
from functools import partial

from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.worker.engine_port import EnginePort

RETRY_S = 0.02
_ON_THE_WAY = (Owner.TICKET, Owner.TRANSFER)


async def flush_when_idle(port: EnginePort, timeout_s: float, salts: bytes = b"") -> bool:
    """Empty the cache once the engine is idle; return False if it stays busy for `timeout_s`.

    salts: the beginning of those of which alone all is removed, once nothing uses it; b"": of all.
    Raises KeptFileError.
    """
    deadline = time.monotonic() + timeout_s
    flush = partial(Engine.flush_cache, salts=salts) if salts else _flush_if_idle
    while not await port.call(flush):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(RETRY_S, left))
    return True


def _flush_if_idle(engine: Engine) -> bool:
    status = engine.status()
    handed_in = sum(status.slots.get(owner, 0) for owner in _ON_THE_WAY)
    if status.running or status.waiting or status.held or handed_in or engine.has_work:
        return False
    return engine.flush_cache()
