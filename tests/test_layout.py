"""The rooms, their names and who may import whom."""

import ast
import functools
import itertools
import runpy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import setuptools
from class_sizes import ClassSize, class_sizes, oversized

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "core": set(),
    "proto": set(),
    "rpc": {"core", "proto"},
    "kernels": {"core"},
    "text": {"core"},
    "engine": {"core", "kernels", "text"},
    "transfer": {"core", "rpc", "engine.layout", "engine.memory", "proto"},
    "worker": {"core", "rpc", "engine", "transfer", "text", "proto"},
    "api": {"core", "rpc", "text", "proto"},
    "client": {"core", "rpc", "proto"},
    "prefill": {"core", "rpc", "engine", "transfer", "worker", "text", "proto"},
    "decode": {"core", "rpc", "engine", "transfer", "worker", "text", "proto"},
    "router": {"core", "rpc", "api", "text", "proto"},
    "standalone": {"core", "rpc", "engine", "worker", "prefill", "decode", "api", "text", "proto"},
    "deploy": {"core", "rpc", "kernels", "engine", "transfer", "worker", "prefill", "decode",
               "router", "standalone", "api", "text", "proto"},
    "bench": {"core", "rpc", "kernels", "text", "engine", "transfer", "worker", "api", "prefill",
              "decode", "router", "deploy", "proto"},
    "cli": {"deploy", "bench"},
}  # fmt: skip
# These must import on a bare GPU machine: torch, triton, safetensors and tokenizers alone.
BARE = {"core", "kernels", "engine", "text"}
CLUSTER_ONLY = {"ray", "grpc", "nixl", "google", "starlette", "prometheus_client", "uvicorn"}


def imports(path: Path) -> set[str]:
    """Return every module that `path` names in an import, wherever the import stands.

    Each `from module import name` counts as module and as module.name, for `name` may be a module;
    a folder is not named by an import from it. A text that is the name of a module, alone or before
    a colon, counts too: `importlib` is given such texts.
    """
    return imports_in(path.read_text())


def imports_in(source: str) -> set[str]:
    """Return what `imports` does for a file's text."""
    tree = ast.parse(source)
    names: set[str] = set()
    other_processes = set(programs(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{a.name}" for a in node.names}
            if node.module not in folders():
                names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.Constant) and node not in other_processes:
            names |= {str(node.value).split(":")[0]} & modules().keys()
    return names


def programs(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the texts that follow "-m" in a command: they are imported by another process."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            for flag, module in itertools.pairwise(node.elts):
                if isinstance(flag, ast.Constant) and flag.value == "-m":
                    yield module


def allowed(module: str, room: str) -> bool:
    inside = module.removeprefix("baton.")
    return inside == "__version__" or any(
        inside == a or inside.startswith(f"{a}.") for a in MAY_IMPORT[room] | {room}
    )


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


def package_folder(package: str) -> Path:
    """Return the folder of a package: that of `baton` is the repository's own."""
    return ROOT.joinpath(*package.split(".")[1:])


def test_every_folder_with_code_is_in_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: given.update(keywords))
    runpy.run_path("setup.py")
    listed = {name for name in given["packages"] if any(package_folder(name).glob("*.py"))}
    found = {
        ".".join(["baton", *p.parent.relative_to(ROOT).parts])
        for room in MAY_IMPORT
        for p in (ROOT / room).rglob("*.py")
    }
    assert listed == {"baton"} | found


def test_rooms_have_no_init_so_they_never_shadow_other_distributions() -> None:
    assert not [r for r in MAY_IMPORT if list((ROOT / r).rglob("__init__.py"))]


@functools.cache
def modules() -> dict[str, Path]:
    """Return the file of every module in every room, by the module's dotted name."""
    return {
        "baton." + ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for room in MAY_IMPORT
        for path in (ROOT / room).rglob("*.py")
    }


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports.

    Imports inside functions and under `if TYPE_CHECKING` count: they hide a cycle from the
    interpreter only, not from a reader, who must understand all of its modules at once. A folder
    that is imported by name counts as every module in it, since nothing else is in a folder.
    """
    found = modules()
    graph: dict[str, set[str]] = {}
    for name, path in found.items():
        named = imports(path)
        graph[name] = {each for each in found if each in named or folder_of(each) in named}
        graph[name].discard(name)
    return graph


def folder_of(module: str) -> str:
    return module.rpartition(".")[0]


@functools.cache
def folders() -> set[str]:
    return {folder_of(name) for name in modules()}


def places(names: Iterable[str]) -> dict[str, str]:
    """Return the place in the order of folders of each module: its folder, or itself where that
    folder has folders in it, for then files and folders stand side by side.
    """
    names = list(names)
    crowded = {folder_of(folder_of(name)) for name in names}
    return {name: name if folder_of(name) in crowded else folder_of(name) for name in names}


def order_of_places(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the places that each place imports, of a graph of modules."""
    place = places(graph)
    lifted: dict[str, set[str]] = {each: set() for each in place.values()}
    for name, imported in graph.items():
        lifted[place[name]] |= {place[module] for module in imported} - {place[name]}
    return lifted


def test_no_folders_of_a_room_import_each_other_in_a_cycle() -> None:
    assert not cycle(order_of_places(import_graph()))


def test_a_folder_beside_files_counts_as_one_and_the_files_one_by_one() -> None:
    # Between files there is no cycle here: b imports c, which imports nothing.
    graph = {"baton.r.a": {"baton.r.f.b"}, "baton.r.f.b": {"baton.r.g.c"}, "baton.r.g.c": set()}
    assert not cycle(graph) and not cycle(order_of_places(graph))
    graph["baton.r.g.d"] = {"baton.r.a"}
    assert not cycle(graph)
    assert set(cycle(order_of_places(graph))) == {"baton.r.a", "baton.r.f", "baton.r.g"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f():\n    from baton.core import errors", {"baton.core.errors"}),
        ("from baton.core.errors import ApiError",
         {"baton.core.errors", "baton.core.errors.ApiError"}),
        ('importlib.import_module("baton.rpc.otlp")', {"baton.rpc.otlp"}),
        ('call_late("baton.deploy.commands.run_worker:run_worker")',
         {"baton.deploy.commands.run_worker"}),
        ("import baton.router.policies as folder", {"baton.router.policies"}),
        ('[sys.executable, "-m", "baton.api.large_child", folder]', set()),
        ('"""The module baton.core.errors has the tree."""', set()),
    ],
)  # fmt: skip
def test_an_import_is_found_wherever_it_hides(source: str, found: set[str]) -> None:
    assert imports_in(source) == found


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of one cycle, or an empty list where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        nodes: list[str] = error.args[1]
        return nodes
    return []


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_no_modules_of_a_room_import_each_other_in_a_cycle(room: str) -> None:
    inside = f"baton.{room}."
    graph = {
        name: {module for module in imported if module.startswith(inside)}
        for name, imported in import_graph().items()
        if name.startswith(inside)
    }
    assert not cycle(graph)


def test_no_rooms_import_each_other_in_a_cycle() -> None:
    rooms: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for name, imported in import_graph().items():
        room = name.split(".")[1]
        rooms[room] |= {module.split(".")[1] for module in imported} - {room}
    assert not cycle(rooms)


MAX_LINES = 400
MAX_KERNEL_LINES = 500
LONG_FILES: dict[str, str] = {}
"""Files that may be longer -> why. Only tables, such as lists of cases or of model families."""


def our_files() -> list[Path]:
    """Return every hand-written source file of the rooms."""
    files = (path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py"))
    return [path for path in files if "_pb2" not in path.name]


def test_no_file_is_too_long_to_read_at_once() -> None:
    for path in our_files():
        name = str(path.relative_to(ROOT))
        limit = MAX_KERNEL_LINES if name.startswith("kernels/") else MAX_LINES
        lines = len(path.read_text().splitlines())
        assert lines <= limit or name in LONG_FILES, f"{name} has {lines} lines, at most {limit}"


def test_no_class_has_more_attributes_or_methods_than_can_be_kept_in_mind() -> None:
    """A class over the limits says why, in a docstring paragraph that begins `Large because`."""
    sizes = [
        replace(size, path=path.relative_to(ROOT))
        for path in our_files()
        for size in class_sizes(path)
    ]
    assert not list(oversized(sizes))


def sizes_of(source: str, folder: Path) -> list[ClassSize]:
    path = folder / "module.py"
    path.write_text(source)
    return list(class_sizes(path))


def fields(count: int, prefix: str = "f", indent: str = "    ") -> str:
    return "".join(f"{indent}{prefix}{i}: int\n" for i in range(count))


def test_attributes_are_counted_wherever_a_method_assigns_them(tmp_path: Path) -> None:
    source = """
class Engine:
    kind: ClassVar[str] = "hybrid"
    plan: int

    def __init__(self):
        self.a, self.b = 1, 2
        self.c: int = 3
        self.d.e = 4

    @property
    def size(self): ...

    def step(me):
        me.f += 1
        with open("x") as me.g: ...
"""
    (size,) = sizes_of(source, tmp_path)
    assert size.attributes == {"plan", "a", "b", "c", "f", "g"}
    assert size.methods == {"size", "step"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A:\n" + fields(20), []),
        ("class A:\n" + fields(21), ["A: 21 attributes, at most 20"]),
        ('class A:\n    """A.\n\n    Large because it must.\n    """\n' + fields(21), []),
        ("@dataclass(frozen=True)\nclass A:\n" + fields(40), []),
        ("@dataclass(frozen=True)\nclass A:\n" + fields(41), ["A: 41 attributes, at most 40"]),
        ("class A(BaseModel):\n" + fields(40), []),
        (
            "class M:\n" + fields(15) + "class A(M):\n" + fields(6, "g"),
            ["A: 21 attributes, at most 20"],
        ),
        (
            "class A:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(26)),
            ["A: 26 methods, at most 25"],
        ),
        (
            "class L:\n"
            + "".join(f"    def m{i}(self): ...\n" for i in range(15))
            + 'class K(L):\n    """K.\n\n    Large because each is a kernel.\n    """\n'
            + "".join(f"    def m{i}(self): ...\n" for i in range(15, 30))
            + "class A(K):\n"
            + "".join(f"    def m{i}(self): ...\n" for i in range(30)),
            [],
        ),
    ],
)
def test_a_class_over_the_limits_is_found_unless_it_gives_a_reason(
    source: str, found: list[str], tmp_path: Path
) -> None:
    sizes = sizes_of(source, tmp_path)
    assert [line.split(" ", 1)[1] for line in oversized(sizes)] == found


TWICE: dict[str, str] = {}
"""Class names that stand twice -> why both are the field's own word for the thing. At most 5."""


def test_no_public_class_name_is_defined_twice() -> None:
    rooms = [room for room in MAY_IMPORT if room != "proto"]
    found: dict[str, list[str]] = {}
    for path in sorted(path for room in rooms for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    unknown = {name: paths for name, paths in twice.items() if name not in TWICE}
    assert not unknown, f"rename, or merge: {unknown}"
    assert set(TWICE) <= set(twice), "an exception that is not needed any more"
    assert len(TWICE) <= 5
