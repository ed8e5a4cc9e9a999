"""The committed stubs are what the contracts generate."""

from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def test_generated_stubs_are_fresh(tmp_path: Path) -> None:
    contracts = sorted(str(p) for p in (ROOT / ".types/baton/proto").glob("*.proto"))
    assert contracts
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-I{ROOT / '.types'}", *outputs, *contracts]) == 0
    made = {p.name: p.read_text() for p in (tmp_path / "baton/proto").iterdir()}
    committed = {p.name: p.read_text() for p in (ROOT / "proto").glob("*_pb2*")}
    assert made.keys() == committed.keys(), "run `make protos` and commit what it makes"
    stale = [name for name in made if made[name] != committed[name]]
    assert not stale, f"stale: {stale}; run `make protos` and commit what it makes"
