"""Empties the prefix cache of one engine while nothing runs on it."""

import asyncio
import time

from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.worker.engine_port import EnginePort

RETRY_S = 0.02
_ON_THE_WAY = (Owner.TICKET, Owner.TRANSFER)


async def flush_when_idle(port: EnginePort, timeout_s: float) -> bool:
    """Empty the cache once the engine is idle; return False if it stays busy for `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not await port.call(_flush_if_idle):
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
