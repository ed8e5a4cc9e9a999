"""Building the native library: once, by one process, or not at all."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from baton.kernels import dispatch
from baton.kernels.native import build as compilation
from baton.kernels.native import library
from baton.kernels.native.build import BuildError, build
from baton.kernels.native.library import Library
from baton.kernels.torch_kernels import TORCH

QUICK = tuple("-O0" if flag == "-O3" else flag for flag in compilation._FLAGS)
"""The options of a compilation that takes a fifth of the time."""
BUILD = """
import sys
from pathlib import Path
from baton.kernels.native import build
build._FLAGS = tuple(sys.argv[2:])
print(build.build(Path(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if library.load() is None:
        pytest.skip("no C++ compiler")
    assert QUICK != compilation._FLAGS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "_FLAGS", QUICK)
        yield tmp_path_factory.mktemp("native") / "cache"


@pytest.fixture(scope="module")
def built(cache: Path) -> list[bytes]:
    """Build the library by three processes at once; return the path that each has printed."""
    processes = [
        subprocess.Popen([sys.executable, "-c", BUILD, str(cache), *QUICK], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    paths = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return paths


def test_three_processes_that_build_at_once_get_one_library(
    built: list[bytes], cache: Path
) -> None:
    assert len(built) == 3 and len(set(built)) == 1
    assert Library(build(cache)).run is not None
    left = [path.name for path in cache.iterdir()]
    assert sorted(Path(name).suffix for name in left) == [".lock", ".so"], left


def test_a_library_is_built_once(built: list[bytes], cache: Path) -> None:
    made = Path(built[0].decode())
    before = made.stat()
    assert build(cache) == made
    after = made.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


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
