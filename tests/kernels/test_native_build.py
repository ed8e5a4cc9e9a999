"""Building the native library: once, by one process, or not at all."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from baton.kernels import dispatch
from baton.kernels.native import library
from baton.kernels.native.build import BuildError, build
from baton.kernels.native.library import Library
from baton.kernels.torch_kernels import TORCH

BUILD = "import sys; from baton.kernels.native.build import build; print(build(sys.argv[1]))"
BUILD = BUILD.replace("build(sys", "build(__import__('pathlib').Path(sys").replace("]))", "])))")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    if library.load() is None:
        pytest.skip("no C++ compiler")
    return tmp_path / "cache"


def test_three_processes_that_build_at_once_get_one_library(cache: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", BUILD, str(cache)], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    paths = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert len(paths) == 1
    assert Library(build(cache)).run is not None
    left = [path.name for path in cache.iterdir()]
    assert sorted(Path(name).suffix for name in left) == [".lock", ".so"], left


def test_a_library_is_built_once(cache: Path) -> None:
    first = build(cache)
    made = first.stat().st_mtime_ns
    assert build(cache) == first and first.stat().st_mtime_ns == made


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no such-compiler on PATH"):
        build(tmp_path, compiler="such-compiler")


def test_a_failing_compiler_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="failed with 1"):
        build(tmp_path / "cache", compiler="false")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    if library.load() is None:
        pytest.skip("no C++ compiler")
    with pytest.raises(BuildError, match="cannot write to"):
        build(blocked / "cache")


def test_without_a_compiler_torch_is_used_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_compiler() -> Path:
        raise BuildError("no g++ on PATH")

    monkeypatch.setattr(library, "build", no_compiler)
    library.load.cache_clear()
    cpu = torch.device("cpu")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            chosen = [
                dispatch.select(cpu, torch.float32, dispatch.KernelChoice.AUTO) for _ in range(2)
            ]
        assert chosen == [TORCH] * 2
        assert sum("no g++ on PATH" in str(w.message) for w in seen) == 1
    finally:
        library.load.cache_clear()


def test_what_the_library_does_not_hold_stays_with_torch() -> None:
    cpu, auto = torch.device("cpu"), dispatch.KernelChoice.AUTO
    assert dispatch.select(cpu, torch.float16, auto) is TORCH
    assert dispatch.select(torch.device("meta"), torch.float32, auto) is TORCH
    assert dispatch.select(cpu, torch.float32, dispatch.KernelChoice.TORCH) is TORCH
