"""Engines whose prefixes outlive them in files, and ways to look at those files."""

from pathlib import Path
from typing import Any

from engine.engines import assert_clean
from engine.hash_model import HashModel
from engine.host_tiers import MIB, forget_device, saved, tier_of, tiered
from kit.polling import wait_until

from baton.engine.engine import Engine
from baton.engine.tiers.file_tier import FileTier


def file_options(folder: Path) -> dict[str, Any]:
    """Return the options of a host's tier and of files in `folder`."""
    return {
        "host_cache_bytes": MIB,
        "host_cache_state_bytes": MIB,
        "file_cache": folder / "files",
        "file_cache_bytes": 16 * MIB,
        "state_key_file": folder / "key",
    }


def filed(folder: Path, model: HashModel | None = None, **options: object) -> Engine:
    """Return an engine with a host's tier and files in `folder`, as one that was started again."""
    return tiered(model, **(file_options(folder) | options))


def files_of(engine: Engine) -> FileTier:
    files = tier_of(engine).files
    assert files is not None
    return files


def written(engine: Engine) -> Engine:
    """Wait until files have all that they are to have."""
    saved(engine)

    def done() -> bool:
        tier_of(engine).collect()
        return not files_of(engine).writing

    wait_until(done)
    assert_clean(engine)
    return engine


def forget_memory(engine: Engine) -> None:
    """Evict all from the device's cache and the host's, and overwrite what they held."""
    forget_device(written(engine))
    tier = tier_of(engine)
    tier.host.pools.cache.flush()
    assert not tier.host.pools.cache.nodes
    tier.memory.states.random_(0, 256)
    tier.memory.pages.random_(0, 256)


def paths_in(folder: Path) -> list[Path]:
    """Return the files of prefixes, drafts among them, the smallest first."""
    found = [path for path in (folder / "files").glob("*/*") if path.is_file()]
    return sorted(found, key=lambda path: (path.stat().st_size, path.name))
