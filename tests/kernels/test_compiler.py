"""Triton's compiler: what it has made is counted, and kept on this host."""

import logging
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import driver

from baton.bench.gpu.aot import HOPPER, AbsentDriver
from baton.kernels.triton.compiler import CompilationCount, file_system, use_host_cache
from baton.kernels.triton.triton_kernels import TritonKernels

MOUNTS = """\
overlay / overlay rw,relatime 0 0
server:/export /home nfs4 rw,vers=4.2 0 0
/dev/sda1 /home/local ext4 rw 0 0
user@host: /mnt/far fuse.sshfs rw 0 0
/dev/sdb1 /mnt/my\\040disk xfs rw 0 0
"""


@triton.jit
def doubled(x):
    place = x + tl.program_id(0)
    tl.store(place, tl.load(place) * 2)


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    """A table of mounts as the kernel shows it."""
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    return path


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder that is chosen already, and none that stays chosen after the test."""
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setattr(triton.knobs.cache, "dir", triton.knobs.cache.dir)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me/.cache", "nfs4"),
        ("/home/local/me", "ext4"),
        ("/mnt/far/away", "fuse"),
        ("/mnt/my disk/a", "xfs"),
        ("/srv", "overlay"),
        ("/homes", "overlay"),
    ],
)
def test_a_folder_lies_in_the_file_system_of_the_deepest_mount(
    folder: str, kind: str, mounts: Path
) -> None:
    assert file_system(Path(folder), mounts) == kind


def test_kernels_are_kept_in_the_cache_folder_of_a_local_home(
    monkeypatch: pytest.MonkeyPatch, mounts: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/local/me")
    cache = use_host_cache(mounts)
    assert cache == Path(f"/home/local/me/baton/triton-{triton.__version__}")
    assert triton.knobs.cache.dir == str(cache)


def test_kernels_are_kept_in_a_folder_of_the_user_alone_where_home_is_shared(
    monkeypatch: pytest.MonkeyPatch, mounts: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = use_host_cache(mounts)
    assert cache.is_relative_to(tmp_path)
    assert cache.parent.stat().st_mode & 0o077 == 0
    assert use_host_cache(mounts) == cache, "all processes of the user find it"


def test_a_folder_that_others_may_write_is_not_used(
    monkeypatch: pytest.MonkeyPatch, mounts: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    taken = use_host_cache(mounts).parent
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    taken.chmod(0o777)
    assert use_host_cache(mounts).parent != taken


@pytest.mark.parametrize(("chosen", "warned"), [("/home/me/triton", True), ("/srv/triton", False)])
def test_a_folder_that_is_named_is_kept_and_warned_of_where_it_is_shared(
    chosen: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    mounts: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", chosen)
    with caplog.at_level(logging.WARNING):
        assert use_host_cache(mounts) == Path(chosen)
    assert bool(caplog.records) == warned


@pytest.mark.skipif(torch.cuda.is_available(), reason="an absent GPU's driver takes its place")
def test_each_variant_that_triton_makes_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if triton.knobs.runtime.interpret:
        pytest.skip("interpreted kernels are not compiled")
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", None)
    monkeypatch.setattr(driver, "_active", AbsentDriver(HOPPER))
    found = CompilationCount()
    found.watch()
    found.watch()

    for number, dtype in enumerate((torch.bfloat16, torch.float32), 1):
        for _ in range(2):
            doubled.warmup(dtype, grid=(1,))
            assert found.count == number


def test_triton_kernels_say_how_many_were_compiled() -> None:
    assert (TritonKernels().compilations is None) == bool(triton.knobs.runtime.interpret)
