"""`baton doctor`: what this machine lacks is named, with its meaning and a remedy."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from torch.distributed import is_nccl_available

from baton.deploy.doctor import compute, first_answer, host
from baton.deploy.doctor.compute import (
    check_cores,
    check_huge_pages,
    check_torch,
    gpu_finding,
    memory_finding,
    ranks_finding,
    triton_finding,
)
from baton.deploy.doctor.finding import Finding, Level
from baton.deploy.doctor.first_answer import check_answers
from baton.deploy.doctor.host import check_clock, check_folder
from baton.deploy.doctor.links import (
    LEAST_AGENTS,
    check_rdma,
    check_shared_memory,
    check_ucx,
)
from baton.deploy.doctor.made_up_models import KINDS
from baton.deploy.doctor.packages import check_package
from baton.deploy.doctor.probe import run_probe
from baton.deploy.errors import ProbeError
from baton.deploy.process import gpu_driver
from baton.transfer.channels.nixl import ucx

ROOT = Path(__file__).parents[2]
BATON = [sys.executable, "-m", "baton.cli.main"]
CAN_MOUNT = os.geteuid() == 0 and shutil.which("unshare") is not None
H200 = {"name": "H200", "capability": "9.0", "free": 130 << 30, "total": 139 << 30}


def run(command: list[str], **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the doctor, and return its exit code and its findings by check."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | environment
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found, done.stderr
    return done.returncode, {f"{each['check']} {each['found']}": each for each in found}


def only(found: dict[str, dict[str, Any]], start: str) -> dict[str, Any]:
    """Return the one finding whose check and text start so."""
    matches = [each for told, each in found.items() if told.startswith(start)]
    assert len(matches) == 1, f"{start!r} in {sorted(found)}"
    return matches[0]


def module(folder: Path, name: str, source: str) -> None:
    """Write a package that Python finds before the installed one."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)


@pytest.mark.skipif(not CAN_MOUNT, reason="mounting a small /dev/shm needs root and unshare")
def test_every_fault_of_one_machine_is_named_with_its_remedy(tmp_path: Path) -> None:
    module(tmp_path, "nixl", "raise ImportError('libucp.so.0 is missing')\n")
    old_ray = tmp_path / "ray-2.30.0.dist-info"
    old_ray.mkdir()
    (old_ray / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.30.0\n")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        script = (
            "mount -t tmpfs -o size=16m tmpfs /dev/shm && ulimit -n 256 && "
            f'exec "$@" doctor --json --http-port {port} --grpc-port 0'
        )
        faulty = ["unshare", "--mount", "sh", "-c", script, "sh", *BATON]
        code, found = run(faulty, PYTHONPATH=str(tmp_path))
    assert code == 1
    for start, remedy in (
        ("shared memory /dev/shm has 16 MiB free", "--shm-size"),
        ("open files 256", "ulimit -n"),
        ("ray 2.30.0; Baton requires", "pip install 'ray"),
        ("NIXL agent nixl cannot be imported (libucp.so.0 is missing)", "--channel grpc"),
        (f"port --http-port {port} on 127.0.0.1 cannot be used", "ss -ltnp"),
    ):
        finding = only(found, start)
        assert finding["level"] == "problem" and finding["meaning"]
        assert remedy in finding["remedy"]
    assert only(found, "port --grpc-port 0")["level"] == "ok"
    assert only(found, "grpcio ")["level"] == "ok"


def test_a_sound_machine_has_no_problem_and_the_report_is_readable() -> None:
    done = subprocess.run(
        [*BATON, "doctor", "--http-port", "0", "--grpc-port", "0"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok       ray: " in done.stdout
    assert "ok       answer: Mamba-2, attention; " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("0 problems, ")


def test_a_package_that_hangs_or_aborts_does_not_take_the_doctor_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "hangs", "")
    (tmp_path / "hangs/__main__.py").write_text("import time\ntime.sleep(600)\n")
    module(tmp_path, "aborts", "")
    (tmp_path / "aborts/__main__.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ProbeError, match=r"no answer within 1 s"):
        run_probe("hangs", deadline_s=1.0)
    with pytest.raises(ProbeError, match=r"ended by signal 6"):
        run_probe("aborts")
    with pytest.raises(ProbeError, match=r"No module named"):
        run_probe("is_not_there")


def test_a_package_that_is_missing_or_too_old() -> None:
    missing = check_package(Requirement("no-such-package>=1"))
    assert missing.level is Level.PROBLEM and missing.found == "not installed"
    old = check_package(Requirement("pytest>=900"))
    assert old.level is Level.PROBLEM and old.remedy == "pip install 'pytest>=900'"
    assert check_package(Requirement("pytest>=1")).level is Level.OK


def test_a_driver_is_found_by_the_signs_that_a_start_goes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = tmp_path / "nvidiactl"
    known: dict[str, Any] = {"devices": [], "cuda": None, "version": "2.9"}
    monkeypatch.setattr(gpu_driver, "SIGNS", (tmp_path / "version", sign))
    monkeypatch.setattr(compute, "run_probe", lambda module: known)
    assert next(check_torch()).level is Level.NOTE
    sign.touch()
    assert next(check_torch()).level is Level.PROBLEM


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "folder", lambda: tmp_path)
    assert check_folder().level is not Level.PROBLEM
    monkeypatch.setattr(host, "full_disk", lambda folder: f"the disk of {folder} is full")
    finding = check_folder()
    assert finding.level is Level.PROBLEM and str(tmp_path) in finding.found


@pytest.mark.parametrize(
    ("cuda", "devices", "driver", "level"),
    [
        ("13.0", [H200], True, Level.OK),
        (None, [], False, Level.NOTE),
        (None, [], True, Level.PROBLEM),  # torch for CPUs on a machine with a GPU
        ("13.0", [], True, Level.PROBLEM),  # hidden, or a driver that is too old
        ("13.0", [H200, H200 | {"name": "T4", "capability": "7.5"}], True, Level.PROBLEM),
    ],
)
def test_the_gpu(
    cuda: str | None, devices: list[dict[str, Any]], driver: bool, level: Level
) -> None:
    found = {"version": "2.13.0", "cuda": cuda, "devices": devices}
    assert gpu_finding(found, driver=driver).level is level


def four(**others: dict[str, Any]) -> list[dict[str, Any]]:
    """Four GPUs that reach one another; others: what differs, by a number, as `gpu3`."""
    made = [H200 | {"peers": [peer for peer in range(4) if peer != rank]} for rank in range(4)]
    return [gpu | others.get(f"gpu{rank}", {}) for rank, gpu in enumerate(made)]


@pytest.mark.parametrize(
    ("nccl", "devices", "level", "told"),
    [
        (True, four(), Level.OK, "4 GPUs, each reaches the others' memory; NCCL is there"),
        (False, four(), Level.PROBLEM, "4 GPUs, but torch 2.13.0 has no NCCL"),
        (True, four(gpu3={"name": "H100"}), Level.WARNING, "4 GPUs of different kinds"),
        (
            True,
            four(gpu1={"peers": [0, 2]}, gpu3={"peers": [0, 2]}),
            Level.WARNING,
            "4 GPUs; no access to each other's memory: 1 and 3",
        ),
        (
            True,
            [each | {"peers": []} for each in four()],
            Level.WARNING,
            "4 GPUs; no access to each other's memory: 0 and 1, 0 and 2, 0 and 3 and 3 more pairs",
        ),
    ],
    ids=["all", "no NCCL", "kinds", "one pair", "none"],
)
def test_gpus_of_one_worker(
    nccl: bool, devices: list[dict[str, Any]], level: Level, told: str
) -> None:
    found = ranks_finding({"version": "2.13.0", "nccl": nccl, "devices": devices})
    assert (found.level, found.found) == (level, told)


def test_the_probe_says_what_torch_knows() -> None:
    found = run_probe("baton.deploy.doctor.torch_probe")
    assert found["nccl"] is is_nccl_available()
    assert len(found["devices"]) == torch.cuda.device_count()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU's kernels would be compiled")
def test_engines_of_every_kind_of_layer_answer_as_torch_computes() -> None:
    (finding,) = check_answers("cpu")
    assert finding.level is Level.OK, finding
    assert all(kind in finding.found for kind in KINDS)
    layers = {path.stem for path in (ROOT / "engine/models/layers").glob("*.py")}
    parts = {"base", "expert_share", "linear", "mlp", "norm", "rope", "vocabulary"}
    tried = {"attention", "gated_delta", "kda", "mamba2", "mla", "moe", "short_conv"}
    drafting = {"hidden_shift", "mtp_attention"}
    assert layers == parts | tried | drafting, "a new kind of layer needs a made-up model"


@pytest.mark.parametrize(
    ("printed", "told", "remedy"),
    [
        ('print(\'{"a": 9.0, "b": 1.0}\')', "farther .*: a \\(9 times\\)", "constraints.txt"),
        ("print('{\"a\": NaN}')", "farther .*: a \\(nan times\\)", "constraints.txt"),
        ("raise ValueError('out of shared memory')", "none: .*out of shared mem", "whole error"),
    ],
    ids=["wrong", "not a number", "error"],
)
def test_an_engine_that_fails_or_computes_wrong_numbers_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, told: str, remedy: str
) -> None:
    module(tmp_path, "answers", "")
    (tmp_path / "answers/__main__.py").write_text(printed)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(first_answer, "PROBE", "answers")
    for device, count, way in (("cuda", len(KINDS), "--device cpu"), ("cpu", 1, "--kernels torch")):
        found = list(check_answers(device))
        assert len(found) == count
        for finding in found:
            assert finding.level is Level.PROBLEM and re.search(told, finding.found)
            assert remedy in finding.remedy and way in finding.remedy


def test_a_triton_that_torch_does_not_ask_for() -> None:
    asked = [Requirement("triton==3.6.0"), Requirement("sympy")]
    assert triton_finding(asked, "3.6.0").level is Level.OK
    other = triton_finding(asked, "3.9.0")
    assert other.level is Level.PROBLEM and "triton==3.6.0" in other.remedy
    assert triton_finding(asked, None).level is Level.PROBLEM


def test_rdma_ports_and_the_limit_of_locked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_rdma(tmp_path).level is Level.NOTE
    port = tmp_path / "mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    assert check_rdma(tmp_path).level is Level.WARNING
    (port / "state").write_text("4: ACTIVE\n")
    limits = "baton.deploy.doctor.links.resource.getrlimit"
    monkeypatch.setattr(limits, lambda which: (64 << 10, 64 << 10))
    small = check_rdma(tmp_path)
    assert small.level is Level.PROBLEM and "mlx5_0:1 ACTIVE" in small.found
    monkeypatch.setattr(limits, lambda which: (-1, -1))
    assert check_rdma(tmp_path).level is Level.OK


def test_settings_of_the_system(tmp_path: Path) -> None:
    mode, quota = tmp_path / "enabled", tmp_path / "cpu.max"

    def levels(text: str, limit: str) -> tuple[Level, Level]:
        mode.write_text(text)
        quota.write_text(limit)
        return check_huge_pages(mode).level, check_cores(quota).level

    assert levels("always [madvise] never\n", "max 100000\n") == (Level.OK, Level.OK)
    assert levels("always madvise [never]\n", "50000 100000\n") == (Level.WARNING, Level.WARNING)
    assert check_huge_pages(tmp_path / "absent").level is Level.WARNING
    assert memory_finding(1 << 30).level is Level.WARNING
    assert check_clock(now=0.0).level is Level.PROBLEM
    assert check_ucx({"UCX_NET_DEVICES": "eth0"}).level is Level.WARNING
    assert check_ucx({"UCX_NET_DEVICES": "lo"}).level is Level.NOTE, "a start takes it too"
    assert check_ucx({"UCX_TLS": "tcp"}).found == "UCX_TLS=tcp"


def test_shared_memory_is_a_problem_where_a_start_would_refuse_nixl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("UCX_TLS", raising=False)
    monkeypatch.setattr(ucx, "free_shared_memory", lambda folder: LEAST_AGENTS * ucx.AGENT_BYTES)
    assert check_shared_memory().level is Level.OK
    monkeypatch.setattr(ucx, "free_shared_memory", lambda folder: ucx.AGENT_BYTES)
    assert check_shared_memory().level is Level.PROBLEM
    monkeypatch.setenv("UCX_TLS", "tcp")  # it maps nothing
    assert check_shared_memory().level is Level.OK


def test_a_setting_that_stops_nixl_beside_a_gpu_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucx, "DRIVER", tmp_path)
    assert check_ucx({"UCX_TLS": "tcp"}).level is Level.PROBLEM
    assert check_ucx({"UCX_TLS": "tcp,cuda_copy"}).level is Level.NOTE


def test_a_problem_without_a_remedy_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match="needs both"):
        Finding("memory", Level.PROBLEM, "none", meaning="nothing runs")
