"""The options of SGLang and vLLM for a cache in the host's memory, beside those of the engine."""

from dataclasses import dataclass

from baton.core.options import Group, Number, Words, option
from baton.deploy.errors import StartError
from baton.engine.settings.options import EngineOptions

_THROUGH = "write_through"
_POLICIES = (_THROUGH, "write_through_selective", "write_back")


# fmt: off
@dataclass(frozen=True, kw_only=True)
class HostCacheOptions:
    """SGLang's options besides sizes; `check_host_cache` refuses what has no meaning here."""

    enable_hierarchical_cache: bool = option(
        False, Group.CACHE, "SGLang's word for --host-cache-gb, which it needs beside it.",
        names=("--enable-hierarchical-cache", "--enable-hicache"))
    hicache_ratio: float | None = option(
        None, Group.CACHE,
        "Refused: the host's memory is given in bytes, not in sizes of the device's pools.",
        Number(0))
    hicache_write_policy: str | None = option(
        None, Group.CACHE,
        "As SGLang's recipes say: write_through, since prefixes are copied as soon as they are "
        "cached. Others are refused.", Words({each: each for each in _POLICIES}))
# fmt: on


def check_host_cache(given: HostCacheOptions, engine: EngineOptions) -> None:
    """Raise StartError for what the host's tier does not do."""
    sizes = "--host-cache-gb for KV pages and --host-cache-state-gb for snapshots, in GiB"
    if given.hicache_ratio is not None:
        raise StartError(
            f"--hicache-ratio {given.hicache_ratio:g}: the host's memory is not sized by the "
            f"device's pools. Use {sizes}: each kind has a budget of its own, so that pages cannot "
            "push snapshots out"
        )
    if given.hicache_write_policy not in (None, _THROUGH):
        raise StartError(
            f"--hicache-write-policy {given.hicache_write_policy}: prefixes are copied behind "
            f"requests as soon as they are cached, whether or not they were hit. Use {_THROUGH}, "
            "or leave it out"
        )
    if given.enable_hierarchical_cache and not (
        engine.host_cache_bytes or engine.host_cache_state_bytes
    ):
        raise StartError(f"--enable-hierarchical-cache needs sizes: give {sizes}")
