"""Workers by hand on one GPU: the second is refused before it loads, unless their parts fit."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from baton.deploy.errors import StartError
from baton.deploy.process import gpu_claim
from baton.deploy.process.gpu_claim import GpuClaim, claimed_gpus, holding
from baton.engine.settings.config import EngineConfig


def claim(worker: str, part: float, *gpus: str) -> GpuClaim:
    return GpuClaim(worker, gpus or ("GPU-a",), part)


def test_a_second_worker_on_a_gpu_is_refused_with_what_would_help(tmp_path: Path) -> None:
    with holding(claim("prefill-0", 0.9), tmp_path):
        told = (
            "decode-0 would take 90% of the memory of GPU GPU-a, of which prefill-0 has planned "
            r"90%: .* --memory-fraction \(as 0.45\) or --memory-gb"
        )
        with pytest.raises(StartError, match=told), holding(claim("decode-0", 0.9), tmp_path):
            pass
        with holding(claim("decode-0", 0.9, "GPU-b"), tmp_path):
            pass
        with pytest.raises(StartError), holding(claim("d", 0.2, "GPU-b", "GPU-a"), tmp_path):
            pass
    with holding(claim("decode-0", 0.9), tmp_path):
        pass


def test_parts_that_fit_together_are_held_together(tmp_path: Path) -> None:
    with ExitStack() as held:
        for number in range(3):
            held.enter_context(holding(claim(f"decode-{number}", 0.3), tmp_path))
        with pytest.raises(StartError, match=r"decode-.*, decode-.*, decode-.* has planned 90%"):
            held.enter_context(holding(claim("decode-3", 0.3), tmp_path))


def test_the_claim_of_a_process_that_was_killed_is_void(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from baton.deploy.process.gpu_claim import GpuClaim, holding\n"
        "with holding(GpuClaim('killed', ('GPU-a',), 0.9), Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n    sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StartError, match="killed has"), holding(claim("b", 0.9), tmp_path):
            pass
    finally:
        other.kill()
        other.communicate()
    with holding(claim("b", 0.9), tmp_path):
        pass


def test_a_worker_claims_what_its_options_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def properties(number: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=80 << 30, uuid=f"u{number}")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(gpu_claim, "folder", lambda: tmp_path)
    on_gpu = EngineConfig(Path("m"), device="cuda", memory_fraction=0.9)
    with claimed_gpus(on_gpu, "a"):
        with claimed_gpus(EngineConfig(Path("m")), "on a CPU"):
            pass
        with claimed_gpus(EngineConfig(Path("m"), device="cuda:1"), "on another GPU"):
            pass
        with pytest.raises(StartError, match=r"b would take 90% .* u0, of which a has"):
            with claimed_gpus(EngineConfig(Path("m"), device="cuda", tp=2), "b"):
                pass
        small = EngineConfig(Path("m"), device="cuda", memory_bytes=8 << 30)
        with claimed_gpus(small, "with 8 of 80 GiB"):
            pass
