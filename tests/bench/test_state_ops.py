"""The benchmark of the host side: what it prints, on sizes that take no time."""

import gc
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from baton.bench.prefix.trace import BLOCK
from baton.bench.state_ops import contexts, schedule
from baton.bench.state_ops import state_ops as state_ops_module
from baton.bench.state_ops.cache import conversations
from baton.bench.state_ops.slots import SLOTS, load_sglang
from baton.bench.state_ops.state_ops import state_ops

# As much of SGLang's interface as is timed; slots are lists here.
ALLOCATOR = """
class MambaSlotAllocator:
    def __init__(self, size, device):
        self.free_slots = list(range(1, size + 1))

    def alloc(self, need_size):
        return [self.free_slots.pop() for _ in range(need_size)]

    def free(self, free_index):
        self.free_slots += free_index

    def alloc_group_begin(self, num_reqs):
        pass

    def alloc_group_end(self):
        pass
"""


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "STEPS", 4)
    monkeypatch.setattr(contexts, "STEPS", 4)
    monkeypatch.setattr(contexts, "LENGTHS", (70, 200))
    monkeypatch.setattr(state_ops_module, "RUNNING", (1, 5, 24, 40))
    monkeypatch.setattr(state_ops_module, "WIDE", 24)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # what all other tests have left here is much
    monkeypatch.setattr(schedule, "PROMPT", 64)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    lines = [
        {"timestamp": n, "input_length": n * BLOCK + 9, "output_length": 1,
         "hash_ids": list(range(n + 1))}
        for n in range(1, 6)
    ]  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def printed(*arguments: str) -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(state_ops, [*arguments, "--json", "--seed", "5"])
    assert result.exit_code == 0, result.output
    report: dict[str, dict[str, float]] = json.loads(result.output.splitlines()[-1])
    return report


@pytest.mark.usefixtures("sizes")
def test_every_key_is_there_with_its_spread_and_its_peer(trace: Path, tmp_path: Path) -> None:
    allocator = tmp_path / "mamba.py"
    allocator.write_text(ALLOCATOR)
    report = printed("--trace", str(trace), "--sglang-allocator", str(allocator))
    keys = {"slot_alloc_free_us", "slot_group_us", "match_insert_us_per_block"}
    keys |= {f"step_host_ms_{n}_at_{length}" for n in (24, 40) for length in (70, 200)}
    keys |= {"step_host_penalised_ms_24_at_200"}
    keys |= {f"{part}_ms_{n}" for part in ("schedule", "pack") for n in (1, 5, 24, 40)}
    assert keys | {f"{key}_spread" for key in keys} <= set(report["results"])
    assert all(report["results"][key] > 0 for key in keys)
    assert {"slot_alloc_free_us", "slot_group_us"} <= set(report["peers"]["sglang"])
    assert report["config"]["requests"] == 5


@pytest.mark.usefixtures("sizes")
def test_a_peer_that_is_not_named_is_skipped_with_the_reason(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_ops_module, "RUNNING", (1,))
    monkeypatch.setattr(state_ops_module, "WIDE", 1)
    peers = printed("--trace", str(trace))["peers"]
    assert "--sglang-allocator" in str(peers["sglang"]["skipped"])


def test_an_allocator_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mamba.py"
    path.write_text(ALLOCATOR)
    slots = load_sglang(path).alloc(SLOTS)
    assert slots is not None and sorted(slots) == list(range(1, SLOTS + 1))


def test_drawn_conversations_grow_and_begin_alike() -> None:
    trace = conversations(random.Random(3), talks=5, turns=4)
    assert len(trace) == 20 and {request.hash_ids[0] for request in trace} == {0}
    longest: dict[int, tuple[int, ...]] = {}
    for request in trace:
        before = longest.get(request.hash_ids[1], ())
        assert request.hash_ids[: len(before)] == before
        assert 0 <= len(request.hash_ids) * BLOCK - request.input_length < BLOCK
        longest[request.hash_ids[1]] = request.hash_ids
