"""The committed stubs are what the contracts generate."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_generated_stubs_are_fresh(tmp_path: Path) -> None:
    contracts = sorted(str(p) for p in (ROOT / ".types/baton/proto").glob("*.proto"))
    assert contracts
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    # In a process of its own: nixl, imported after grpc_tools, ends the process.
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / '.types'}"]
    subprocess.run([*protoc, *outputs, *contracts], check=True, timeout=60)
    made = {p.name: p.read_text() for p in (tmp_path / "baton/proto").iterdir()}
    committed = {p.name: p.read_text() for p in (ROOT / "proto").glob("*_pb2*")}
    assert made.keys() == committed.keys(), "run `make protos` and commit what it makes"
    stale = [name for name in made if made[name] != committed[name]]
    assert not stale, f"stale: {stale}; run `make protos` and commit what it makes"
