"""The memory plan of published models on cards of 80 and 141 GB, with all options left out."""

from pathlib import Path

import pytest
import torch
from engine.published_models import PUBLISHED, SOURCES, divided

from baton.core.errors import ConfigError
from baton.engine.settings.choices import GPU_MAX_RUNNING
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.plan import MemoryPlan

GB = 10**9
CONTEXT = GB // 2  # of this process, which the driver already has when memory is asked for
MOST_SLOTS = 1167  # of 128 requests with 8 snapshots each
TOKENS = 2048  # that each running request has pages for

# Where each model's numbers come from, and when they were compared: SOURCES of published_models.py.
# By model, GB of the card, and ranks: the requests that run at once, state slots and pages of 64
# tokens; or what a refusal advises. Contexts have 8192 tokens, as in PUBLISHED.
TABLE: dict[str, dict[int, dict[int, tuple[int, int, int] | str]]] = {
    "Falcon-H1-34B": {
        80: {1: (2, 5, 23), 2: (72, 147, 2331), 4: (128, 390, 8365)},
        141: {1: (59, 122, 1938), 2: (128, 353, 7125), 4: (128, 752, 19949)},
    },
    "Granite-4.0-H-Small": {
        80: {1: (18, 26, 683), 2: (128, 297, 23679), 4: (128, 745, 88551)},
        141: {1: (128, 256, 17906), 2: (128, 657, 75907), 4: (128, 1167, 147457)},
    },
    "Kimi-Linear-48B-A3B": {
        80: {1: "--tp 2", 2: (128, 475, 12614), 4: (128, 1167, 51075)},
        141: {1: (128, 339, 15112), 2: (128, 1167, 80223), 4: (128, 1167, 144154)},
    },
    "Nemotron-Nano-9B-v2": {
        80: {1: (128, 237, 14104), 2: (128, 471, 45965), 4: (128, 947, 110617)},
        141: {1: (128, 429, 40176), 2: (128, 855, 98109), 4: (128, 1167, 147457)},
    },
    "Qwen3-Next-80B-A3B": {
        80: {1: "--tp 4", 2: "--tp 4", 4: (128, 790, 16103)},
        141: {1: "--tp 2", 2: (128, 620, 23841), 4: (128, 1167, 76652)},
    },
    "Qwen3.5-122B-A10B": {
        80: {1: "--tp 4", 2: "--tp 4", 4: (69, 119, 2277)},
        141: {1: "--tp 2", 2: (5, 9, 249), 4: (128, 855, 35111)},
    },
    "Qwen3.5-27B": {
        80: {1: (32, 64, 1093), 2: (128, 320, 6943), 4: (128, 757, 22852)},
        141: {1: (128, 284, 5632), 2: (128, 678, 19981), 4: (128, 1167, 60160)},
    },
    "Qwen3.5-397B-A17B": {
        80: {1: "--tp 16", 2: "--tp 16", 4: "--tp 16"},
        141: {1: "--tp 8", 2: "--tp 8", 4: "--tp 8"},
    },
    "Qwen3.5-9B": {
        80: {1: (128, 543, 10079), 2: (128, 1167, 26313), 4: (128, 1167, 90445)},
        141: {1: (128, 1077, 23141), 2: (128, 1167, 78669), 4: (128, 1167, 147457)},
    },
}


def planned(name: str, card: int, ranks: int) -> MemoryPlan:
    """Plan as a start with --device cuda --tp RANKS does. Raises ConfigError."""
    config = EngineConfig(Path(name), dtype=torch.bfloat16, device="cuda", tp=ranks)
    return MemoryPlan(config, *divided(name, ranks), card - CONTEXT, card)


def test_there_are_nine() -> None:
    assert TABLE.keys() == PUBLISHED.keys() - {"DeepSeek-V3"} and len(TABLE) == 9
    assert SOURCES.keys() == TABLE.keys(), "numbers whose source nobody can look up"


@pytest.mark.parametrize("card", [80, 141])
@pytest.mark.parametrize("name", TABLE)
def test_a_card_is_used_or_the_refusal_says_what_would_help(name: str, card: int) -> None:
    for ranks, expected in TABLE[name][card].items():
        if isinstance(expected, str):
            with pytest.raises(ConfigError, match=f"not even one .* would help: {expected}, on as"):
                planned(name, card * GB, ranks)
            continue
        made = planned(name, card * GB, ranks)
        assert (made.max_running, made.slots, made.pages) == expected, ranks
        assert made.max_running <= GPU_MAX_RUNNING
        assert (made.pages - 1) * 64 >= TOKENS * made.max_running // 3
        taken = made.tensor_bytes + made.overhead_bytes
        assert 0.5 * card * GB < taken <= 0.9 * card * GB or made.slots == MOST_SLOTS, ranks
