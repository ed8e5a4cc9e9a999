"""Published models on 1, 2, 4 and 8 devices of 80 GB: each fits, or is refused with the reason."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine.published_models import PUBLISHED, divided

from baton.core.errors import ConfigError
from baton.engine.assembly.loader import divided_model
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.plan import MemoryPlan

DEVICE_BYTES = 80 * 10**9
RUNNING = 32
FITS = "fits"
# By model and ranks: GB of bfloat16 weights on each, and the verdict.
TABLE = {
    "Nemotron-Nano-9B-v2": {1: (17.8, FITS), 2: (8.9, FITS), 4: (4.4, FITS), 8: (2.2, FITS)},
    "Granite-4.0-H-Small": {
        1: (64.4, r"the largest max_running that fits is \d+"),
        2: (32.3, FITS),
        4: (16.2, FITS),
        8: (8.1, FITS),
    },
    "Falcon-H1-34B": {
        1: (67.3, r"the largest max_running that fits is \d"),
        2: (33.6, FITS),
        4: (17.0, FITS),
        8: (0.0, r"attention heads \(20\) cannot be divided among 8 .* 1 or 2 or 4 ranks"),
    },
    "Kimi-Linear-48B-A3B": {
        1: (98.3, "not even one request fits"),
        2: (49.2, FITS),
        4: (24.6, FITS),
        8: (12.4, FITS),
    },
    "Qwen3-Next-80B-A3B": {
        1: (159.5, "not even one request fits"),
        2: (79.8, "not even one request fits"),
        4: (40.0, FITS),
        8: (20.1, FITS),
    },
    "Qwen3.5-9B": {1: (17.9, FITS), 2: (9.0, FITS), 4: (4.5, FITS), 8: (2.3, FITS)},
    "Qwen3.5-27B": {1: (53.8, FITS), 2: (26.9, FITS), 4: (13.5, FITS), 8: (6.8, FITS)},
    "Qwen3.5-122B-A10B": {
        1: (244.3, "not even one request fits"),
        2: (122.2, "not even one request fits"),
        4: (61.2, FITS),
        8: (30.7, FITS),
    },
    "Qwen3.5-397B-A17B": {
        1: (793.0, "not even one request fits"),
        2: (396.7, "not even one request fits"),
        4: (198.7, "not even one request fits"),
        8: (99.6, "not even one request fits"),
    },
    "DeepSeek-V3": {
        1: (1342.3, "not even one request fits"),
        2: (672.3, "not even one request fits"),
        4: (337.3, "not even one request fits"),
        8: (169.8, "not even one request fits"),
    },
}


def test_the_table_names_all_published_models() -> None:
    assert set(TABLE) == set(PUBLISHED)


@pytest.mark.parametrize("name", TABLE)
def test_each_number_of_devices_fits_or_is_refused_with_the_reason(name: str) -> None:
    for ranks, (gigabytes, verdict) in TABLE[name].items():
        if not gigabytes:
            with pytest.raises(ConfigError, match=verdict):
                divided(name, ranks)
            continue
        model, weight_bytes = divided(name, ranks)
        assert weight_bytes / 1e9 == pytest.approx(gigabytes, abs=0.051), ranks
        config = EngineConfig(
            Path(name), device="cuda", dtype=torch.bfloat16, max_running=RUNNING,
            memory_fraction=0.9,
        )  # fmt: skip
        if verdict == FITS:
            plan = MemoryPlan(config, model, weight_bytes, DEVICE_BYTES)
            assert plan.slots > RUNNING and plan.pages > RUNNING
            continue
        with pytest.raises(ConfigError, match=verdict):
            MemoryPlan(config, model, weight_bytes, DEVICE_BYTES)


def test_qwen3_5_122b_has_as_many_weights_as_published(tmp_path: Path) -> None:
    """So its numbers of heads are right: with four KV heads there would be 122.15 billion."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["Qwen3.5-122B-A10B"]))
    model = read_config(tmp_path, torch.float32, torch.float32)
    whole = divided_model(model, 1)
    assert whole.weight_bytes / torch.float32.itemsize / 1e9 == pytest.approx(122.11, abs=0.005)


# MB that a verified token keeps of a request, and MB of the request's recurrent state.
KEPT = {
    "Nemotron-Nano-9B-v2": (0.67, 143.6),
    "Kimi-Linear-48B-A3B": (0.66, 43.4),
    "Qwen3-Next-80B-A3B": (0.59, 77.3),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_verified_token_keeps_a_small_part_of_a_state(name: str, tmp_path: Path) -> None:
    """The figures of docs/engine.md: inputs of convolutions, decays and rates."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    model = read_config(tmp_path, torch.bfloat16, torch.float32)
    config = EngineConfig(model=tmp_path, device="cuda", max_running=3, memory_bytes=DEVICE_BYTES)
    plain = MemoryPlan(config, model, 0, 0)
    kept, state = (megabytes * 1e6 for megabytes in KEPT[name])
    assert plain.step.kept == 0
    assert plain.slot_layout.state_bytes == pytest.approx(state, rel=0.002)
    for tokens in (2, 4, 8):
        step = replace(plain.step, window=tokens)
        assert step.kept_token == pytest.approx(kept, rel=0.01)
        assert step.kept == 3 * tokens * step.kept_token
        others = step.activations, step.logits, step.attention, step.latents, step.graphs
        assert step.total == sum(others) + step.kept
