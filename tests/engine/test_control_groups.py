"""The limits of memory that containers and services set, for both versions of control groups."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from engine.control_groups import ControlGroups

from baton.engine.sizing import control_groups as module
from baton.engine.sizing.control_groups import MemoryGroup, memory_groups

ASK = """
import torch
from baton.engine.sizing.available import available_memory, total_memory
print(available_memory(torch.device("cpu")), total_memory())
"""
LIMIT = 3 << 30


def test_a_service_is_bound_by_its_own_group_and_by_all_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ControlGroups(tmp_path, monkeypatch, group="/system.slice/baton.service")
    groups.write("system.slice/baton.service", memory_max=3000, memory_current=1000)
    groups.write("system.slice", memory_max=5000, memory_current=4500)
    assert memory_groups() == [MemoryGroup(3000, 1000), MemoryGroup(5000, 4500)]
    assert [group.left for group in memory_groups()] == [2000, 500]


def test_a_group_without_a_limit_binds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ControlGroups(tmp_path, monkeypatch, group="/a/b")
    groups.write("a/b", memory_max="max", memory_high="max", memory_current=7)
    groups.write("a", memory_max=100, memory_high="max", memory_current=120)
    assert memory_groups() == [MemoryGroup(100, 120)]
    assert memory_groups()[0].left == 0


def test_memory_high_binds_as_memory_max_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ControlGroups(tmp_path, monkeypatch, group="/a")
    groups.write("a", memory_max=3000, memory_high=2000, memory_current=7)
    assert memory_groups() == [MemoryGroup(2000, 7)]


def test_files_that_were_read_once_do_not_count_as_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ControlGroups(tmp_path, monkeypatch)
    stat = "anon 5\nactive_file 30\ninactive_file 600"
    groups.write(".", memory_max=1000, memory_current=900, memory_stat=stat)
    assert memory_groups() == [MemoryGroup(1000, 300)]


@pytest.mark.parametrize("group", ["/docker/abc", "/docker/abc/inner"])
def test_a_container_without_a_namespace_finds_its_group_at_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    groups = ControlGroups(tmp_path, monkeypatch, version=1, group=group, top="/docker/abc")
    groups.write("inner", memory_limit_in_bytes=50, memory_usage_in_bytes=9)
    groups.write(".", memory_limit_in_bytes=100, memory_usage_in_bytes=10)
    own = [MemoryGroup(50, 9)] if group.endswith("inner") else []
    assert memory_groups() == [*own, MemoryGroup(100, 10)]


@pytest.mark.parametrize("group", ["/../../user.slice", "/other", "/docker/abcd"])
def test_a_group_that_is_not_below_the_mount_leaves_the_mounts_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    groups = ControlGroups(tmp_path, monkeypatch, group=group, top="/docker/abc")
    groups.write(".", memory_max=100, memory_current=10)
    assert memory_groups() == [MemoryGroup(100, 10)]


def test_without_control_groups_nothing_binds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SELF", tmp_path)
    assert memory_groups() == []


@pytest.fixture
def limited() -> Iterator[Path]:
    """A real group with a limit, inside of the group that this test is in."""
    folder, files = next(module._folders(), (None, None))
    if folder is None or files is None:
        pytest.skip("no control groups here")
    made = folder / f"baton-test-{uuid4().hex}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no group may be made here: {error}")
    try:
        (made / files.limits[0]).write_text(str(LIMIT))
    except OSError as error:
        made.rmdir()
        pytest.skip(f"no limit may be set here: {error}")
    yield made
    with suppress(FileNotFoundError):
        made.rmdir()


def test_a_process_in_a_real_group_plans_within_its_limit(limited: Path) -> None:
    enter = f'echo $$ > {limited}/cgroup.procs && exec "$0" -c "$1"'
    asked = subprocess.run(
        ["sh", "-c", enter, sys.executable, ASK],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    left, total = map(int, asked.stdout.split())
    assert total == LIMIT
    assert 0 < left <= LIMIT
