"""Budgets that some option does not fit: a plan either holds what was asked for, or names what is
too large and the number that fits.
"""

import re
from dataclasses import replace
from typing import Any

import pytest
from engine.test_memory_plan import (
    ATTENTION_ALONE,
    CONFIG,
    CONVOLUTIONS,
    MODEL,
    RECURRENT_ALONE,
    plan,
    total,
)
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import ConfigError
from baton.engine.settings.config import ModelConfig

MIB = 1 << 20
models = st.sampled_from([MODEL, ATTENTION_ALONE, RECURRENT_ALONE, CONVOLUTIONS])


@given(
    budget=st.integers(1, 60_000).map(lambda mib: mib * MIB),
    running=st.integers(1, 50),
    page=st.sampled_from([1, 16, 64, 512]),
    length=st.none() | st.integers(1, 131072),
    snapshots=st.none() | st.integers(0, 400),
    staging=st.sampled_from([0, 512 * MIB, 20_000 * MIB]),
    model=models,
)
def test_a_plan_holds_what_was_asked_for_or_is_refused(
    budget: int,
    running: int,
    page: int,
    length: int | None,
    snapshots: int | None,
    staging: int,
    model: ModelConfig,
) -> None:
    config = replace(
        CONFIG,
        memory_bytes=budget,
        max_running=running,
        page_size=page,
        max_model_len=length,
        cached_snapshots=snapshots,
        staging_bytes=staging,
    )
    try:
        made = plan(config, model=model)
    except ConfigError as error:
        for option in ("max_running", "cached_snapshots"):
            found = re.search(rf"largest {option} that fits is (\d+)", str(error))
            if found:
                fits: dict[str, Any] = {option: int(found[1])}
                above: dict[str, Any] = {option: int(found[1]) + 1}
                plan(replace(config, **fits), model=model)
                with pytest.raises(ConfigError, match="of budget leave"):
                    plan(replace(config, **above), model=model)
        return
    assert total(made) + staging <= budget
    assert made.pages >= 2 and made.max_model_len >= 1
    if length is not None:
        assert made.max_model_len == length
    if snapshots is not None and model.recurrent:
        assert made.snapshot_slots == snapshots


def test_what_does_not_fit_beside_the_requests_is_named() -> None:
    config = replace(CONFIG, memory_bytes=20_000 * MIB, max_running=2)
    plan(config)
    with pytest.raises(ConfigError, match=r"cached_snapshots 900 need .*; the largest cached"):
        plan(replace(config, cached_snapshots=900))
    with pytest.raises(ConfigError, match=r"buffers of transfers need 29.3 GiB, but 19.53 GiB"):
        plan(replace(config, staging_bytes=30_000 * MIB))
