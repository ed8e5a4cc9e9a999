"""Tests of the number of bytes that a hand-off has to move."""

from pathlib import Path

import torch

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.bench.cluster.needed import handoff_bytes
from baton.engine.models.family_table import read_config


def test_the_state_once_and_keys_and_values_to_the_token(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", GRANITE_SMALL)
    model = read_config(folder, torch.float32, torch.float32)
    inner, state, heads, head = 512, 64, 16, 32
    conv = (inner + 2 * state) * (4 - 1)  # the window less the newest input
    a_state = 6 * (conv + heads * head * state) * 4
    a_token = 2 * 2 * 2 * 32 * 4  # layers, keys and values, kv heads, head dim, float32
    for tokens in (1, 63, 64, 65, 512):
        assert handoff_bytes(model, tokens) == a_state + tokens * a_token
