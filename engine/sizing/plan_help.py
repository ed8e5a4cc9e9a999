"""The options that would help where a budget does not suffice."""

from collections.abc import Iterator

from baton.core.errors import ConfigError
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.readable import readable

_WEIGHTS_AT_MOST = 0.9
"""Part of a card that weights may take and leave room for requests."""


def crowded(config: EngineConfig, card: int, others: int) -> str:
    """Describe that a budget is smaller than its part of a GPU, because others use the GPU; return
    "" where it is not.

    card: bytes of the GPU. others: bytes that were taken before this process took any.
    """
    if not config.on_gpu or others <= (1 - config.fraction) * card:
        return ""
    return (
        f"other processes use {readable(others)} of the {readable(card)} of {config.device} "
        "(`nvidia-smi` lists them; to share it, give each worker its part by --memory-fraction, or "
        "by --gpus-per-worker of `baton serve`)"
    )


def what_helps(
    config: EngineConfig,
    largest: int,
    *,
    weights: int,
    card: int,
    others: int,
    chunk: int,
    length: int,
) -> Iterator[str]:
    """Yield the options that would help.

    largest: max_running that fits, 0 for none. weights: bytes of one rank's. card: bytes of its
    device. others: see `crowded`. chunk: prompt tokens of a step. length: of the longest sequence,
    in tokens.
    """
    ranks = config.tp
    while config.on_gpu and weights * config.tp / ranks > _WEIGHTS_AT_MOST * card:
        ranks *= 2
    if ranks > config.tp:
        yield f"--tp {ranks}, on as many GPUs, for the weights alone"
        return
    if largest:
        yield f"--max-running {largest}"
    by_others = crowded(config, card, others)
    if config.memory_bytes is not None:
        yield "a larger --memory-gb"
    elif by_others:
        yield f"a GPU that is free: {by_others}"
    else:
        yield f"a larger --memory-fraction (now {config.fraction:g})"
    if config.host_tier_bytes and config.memory_bytes is None and not config.on_gpu:
        yield "a smaller --host-cache-gb and --host-cache-state-gb, which are the same memory's"
    yield f"a smaller --chunked-prefill-size (now {chunk})"
    if not largest:
        yield f"a smaller --max-model-len (now {length})"
    if config.on_gpu:
        yield f"--tp {2 * config.tp}, on as many GPUs"


def check_optional(
    budget: int, spare: int, running: int, *, buffers: int, snapshots: int, slot_bytes: int
) -> None:
    """Raise ConfigError if the requests fit, but not what was asked for beside them.

    spare: bytes of the budget beside `running` requests. buffers: bytes for transfers. snapshots:
    to be cached, of `slot_bytes` each.
    """
    if spare < 0:
        return
    left = f"but {readable(budget)} of budget leave"
    if buffers > spare:
        raise ConfigError(
            f"buffers of transfers need {readable(buffers)}, {left} {readable(spare)} beside "
            f"{running} requests: raise memory_bytes by at least {readable(buffers - spare)}, or "
            "lower max_running"
        )
    raise ConfigError(
        f"cached_snapshots {snapshots} need {readable(snapshots * slot_bytes)}, {left} "
        f"{readable(spare - buffers)} beside {running} requests; the largest cached_snapshots "
        f"that fits is {(spare - buffers) // slot_bytes}"
    )
