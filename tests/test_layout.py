"""The rooms, their names and who may import whom."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "proto": set(),
    "kernels": set(),
    "text": set(),
    "engine": {"kernels", "text"},
    "transfer": {"engine.memory", "proto"},
    "worker": {"engine", "transfer", "text", "proto"},
    "api": {"text", "proto"},
    "prefill": {"engine", "transfer", "worker", "text", "proto"},
    "decode": {"engine", "transfer", "worker", "text", "proto"},
    "router": {"api", "text", "proto"},
    "deploy": {"kernels", "engine", "transfer", "worker", "prefill", "decode", "router", "api",
               "text", "proto", "bench"},
    "bench": {"kernels", "text", "engine", "transfer", "worker", "api", "prefill", "decode",
              "router", "deploy", "proto"},
}  # fmt: skip
# These must import on a bare GPU machine: torch, triton, safetensors and tokenizers alone.
BARE = {"kernels", "engine", "text"}
CLUSTER_ONLY = {"ray", "grpc", "nixl", "google", "starlette", "prometheus_client", "uvicorn"}


def imports(path: Path) -> set[str]:
    """Every module that `path` names in an import, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "baton":
            names |= {f"baton.{a.name}" for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
    return names


def allowed(module: str, room: str) -> bool:
    inside = module.removeprefix("baton.")
    return any(inside == a or inside.startswith(f"{a}.") for a in MAY_IMPORT[room] | {room})


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    paths = list((ROOT / room).rglob("*.py"))
    assert paths, f"{room} has no code"
    for path in paths:
        ours = {m for m in imports(path) if m.startswith("baton.")}
        wrong = {m for m in ours if not allowed(m, room)}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("room", sorted(BARE))
def test_the_engine_and_its_kernels_need_no_cluster_packages(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        tops = {m.split(".")[0] for m in imports(path)}
        assert not tops & CLUSTER_ONLY, path.relative_to(ROOT)


def test_every_folder_with_code_is_in_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        "baton." + ".".join(p.parent.relative_to(ROOT).parts)
        for room in MAY_IMPORT
        for p in (ROOT / room).rglob("*.py")
    }
    assert found == set(listed)


def test_rooms_have_no_init_so_they_never_shadow_other_distributions() -> None:
    assert not [r for r in MAY_IMPORT if list((ROOT / r).rglob("__init__.py"))]
