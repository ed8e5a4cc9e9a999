"""The benchmark of the host's tier, on tiny pools and a tiny model."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from deploy.tiny_worker import TINY

from baton.bench.checkpoints import write_checkpoint
from baton.bench.tiers import host_copies
from baton.bench.tiers.tiers import tiers
from baton.bench.transfer.pools import LAYER
from baton.engine.layout.layout import SlotLayout


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "_SLOTS", SlotLayout((LAYER,), torch.bfloat16, torch.float32))
    monkeypatch.setattr(host_copies, "PAGES_OF_PREFIX", 2)
    monkeypatch.setattr(host_copies, "_POOL", 4)


def test_copies_are_shares_of_a_plain_one() -> None:
    done = CliRunner().invoke(tiers, ["--repeats", "3", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output.splitlines()[-1])
    for way in ("write", "load"):
        assert found["results"][f"{way}_gb_s"] > 0 and found["results"][f"{way}_share"] > 0
        assert f"{way}_gb_s_spread" in found["results"]
        assert found["results"][f"file_{way}_gb_s"] > 0
    assert found["results"]["file_load_share"] > 0 and found["results"]["digest_gb_s"] > 0
    assert found["limits"]["copy_gb_s"] > 0 and found["limits"]["read_gb_s"] > 0
    assert "itl_ratio" not in found["results"]


def test_steps_with_copies_are_timed_beside_steps_without(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", TINY)
    words = ["--model", str(folder), "--batch", "3", "--interval", "16", "--steps", "64"]
    done = CliRunner().invoke(tiers, [*words, "--turns", "3", "--repeats", "3", "--json"])
    assert done.exit_code == 0, done.output
    results = json.loads(done.output.splitlines()[-1])["results"]
    assert 0 < results["itl_ratio_low"] <= results["itl_ratio"] <= results["itl_ratio_high"]
    assert results["saved"] > 0
