"""The native kernels without AVX-512 (x86-64-v3), without fused multiply-add (x86-64-v2), and
without the tile registers that this CPU may have."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from baton.kernels.native import library

ROOT = Path(__file__).parents[2]
SOME = ("native", "native_eight_bit", "native_mixers", "native_delta", "verify")
ALL = (*SOME, "mla", "moe", "ranks_rows", "collective")
FAMILIES = "tests/engine/test_speculation_families.py"
WITHOUT_TILES = "-march=native -mno-amx-tile"


@pytest.mark.parametrize(
    ("options", "names", "families"),
    [
        ("-march=x86-64-v3", SOME, False),
        (WITHOUT_TILES, ("native", "native_eight_bit"), False),
        pytest.param("-march=x86-64-v3", ALL, True, marks=pytest.mark.chaos),
        pytest.param("-march=x86-64-v2", ALL, True, marks=pytest.mark.chaos),
    ],
)
def test_kernels_for_older_cpus_pass_the_tests_of_this_one(
    options: str, names: tuple[str, ...], families: bool, tmp_path: Path
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("older instructions are named for x86-64 alone")
    if (loaded := library.load()) is None:
        pytest.skip("no C++ compiler")
    if options == WITHOUT_TILES and not loaded.tiles:
        pytest.skip("this CPU has no tile registers, or Linux does not give them to this process")
    files = [f"tests/kernels/test_{name}.py" for name in names] + [FAMILIES] * families
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "kernels.older_cpu", *files],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": "tests", "OLDER_CPU": options, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
