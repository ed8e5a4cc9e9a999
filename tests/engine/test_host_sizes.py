"""The sizes of the host's tier: what it shares with the engine's own memory, and when it is told
that both do not fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.test_memory_plan import ATTENTION_ALONE, CONFIG, GIB, MODEL, RECURRENT_ALONE, plan

from baton.bench.gpu.models import NEMOTRON_9B, write_config
from baton.core.errors import ConfigError
from baton.engine.assembly import loader
from baton.engine.engine import Engine
from baton.engine.settings.choices import CPU_MEMORY_FRACTION
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing import available, host_sizes
from baton.engine.sizing.host_sizes import HostSizes

FREE = 100 * GIB


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 GiB are free, on the host and on a GPU."""
    for module in (loader, host_sizes):
        monkeypatch.setattr(module, "available_memory", lambda device: FREE)
    monkeypatch.setattr(loader, "card_memory", lambda device: FREE)
    monkeypatch.setattr(available, "total_memory", lambda: FREE)


def tiered(pages: int, states: int, **options: Any) -> EngineConfig:
    """GiB of pages and of states in the host's memory."""
    sizes = {"host_cache_bytes": pages * GIB, "host_cache_state_bytes": states * GIB}
    return replace(CONFIG, **sizes | options)


def test_a_budget_that_nobody_names_leaves_the_tier_its_memory() -> None:
    alone = plan(CONFIG, available=FREE)
    assert alone.budget_bytes == int(FREE * CPU_MEMORY_FRACTION)
    made = plan(tiered(20, 30), available=FREE)
    assert made.budget_bytes == int(50 * GIB * CPU_MEMORY_FRACTION)
    HostSizes(made).check()
    several = plan(tiered(5, 5, workers_on_host=4), available=FREE)
    assert several.budget_bytes == int(60 * GIB * CPU_MEMORY_FRACTION) // 4
    with pytest.raises(ConfigError, match="a smaller --host-cache-gb and --host-cache-state-gb"):
        plan(tiered(80, 20), available=FREE)


def test_the_budget_and_the_tier_together_must_be_free() -> None:
    fits = plan(tiered(20, 30, memory_bytes=49 * GIB), weights=9 * GIB)
    HostSizes(fits).check()
    over = plan(tiered(20, 31, memory_bytes=50 * GIB), weights=9 * GIB)
    told = "would take 51.* GiB of memory beside the 50 GiB of the budget, and 100 GiB are free"
    with pytest.raises(ConfigError, match=told):
        HostSizes(over).check()
    HostSizes(over).check(loaded=9 * GIB)  # of what is free, they take no more


def test_a_gpus_budget_is_not_the_hosts_memory() -> None:
    made = plan(tiered(60, 39, memory_bytes=90 * GIB, device="cuda"), available=FREE)
    HostSizes(made).check()
    over = plan(tiered(60, 41, memory_bytes=90 * GIB, device="cuda"), available=FREE)
    with pytest.raises(ConfigError, match=r"free: lower host_cache_gb and host_cache_state_gb$"):
        HostSizes(over).check()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"host_cache_bytes": 1}, "host_cache_gb has no room for one block"),
        ({"host_cache_state_bytes": 1}, "host_cache_state_gb has no room for one block"),
        ({"host_cache_bytes": 200 * GIB}, "and 100 GiB are free"),
        ({"host_cache_bytes": 0}, "the model has KV pages, and host_cache_gb is 0"),
    ],
)
def test_wrong_sizes_are_told_before_weights_are_read(
    tmp_path: Path, device: str, sizes: dict[str, int], told: str
) -> None:
    """The folder has no weights: reading them would be another error."""
    path = write_config(tmp_path / "model", NEMOTRON_9B, small=False)
    config = EngineConfig(
        path,
        dtype=torch.bfloat16,
        device=device,
        memory_bytes=60 * GIB,
        max_running=4,
        **{"host_cache_bytes": 4 * GIB, "host_cache_state_bytes": 4 * GIB} | sizes,  # type: ignore[arg-type]
    )
    with pytest.raises(ConfigError, match=told):
        Engine.load(config)


def test_a_kind_that_the_model_lacks_takes_no_bytes() -> None:
    for model, pages, states in ((ATTENTION_ALONE, 4, 0), (RECURRENT_ALONE, 0, 4)):
        made = plan(tiered(pages, states, memory_bytes=20 * GIB), model=model)
        sizes = HostSizes(made)
        sizes.check()
        assert 4 * GIB <= sizes.nbytes < 4.1 * GIB
        assert sizes.slots > 1 and sizes.pages > 1
    assert not HostSizes(plan(replace(CONFIG, memory_bytes=20 * GIB), model=MODEL))
