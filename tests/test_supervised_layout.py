"""All concurrent work starts in `core/supervised.py`, which says who hears of its failure."""

import ast
from collections.abc import Iterator

import pytest
from test_layout import MAY_IMPORT, ROOT

HOME = ROOT / "core" / "supervised.py"
FOLDERS = sorted({*MAY_IMPORT, "examples", "monitoring"})
TASKS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
THREADS = {"Thread", "Timer"}
POOLS = {"ThreadPoolExecutor", "ProcessPoolExecutor"}
LOW_LEVEL = {"start_new_thread", "start_joinable_thread"}


def bare_starts(source: str) -> list[str]:
    """Return the line and the name of all that starts work in `source` and is not supervised.

    `create_task` of a TaskGroup is awaited in place; a pool may be made, and given to
    `run_in_executor`, but not be submitted to.
    """
    tree = ast.parse(source)
    groups, pools = set(_task_groups(tree)), set(_pools(tree))
    types = set(_annotations(tree))
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr | ast.stmt) or node in types:
            continue
        name = _name(node)
        if name in TASKS | THREADS | LOW_LEVEL and not _of(node, groups):
            found.append((node, name))
        elif name == "submit" and _of(node, pools):
            found.append((node, name))
        elif isinstance(node, ast.ImportFrom):
            found += [(node, a.name) for a in node.names if a.name in TASKS | THREADS | LOW_LEVEL]
    return sorted({f"{node.lineno}: {name}" for node, name in found})


def _name(node: ast.AST) -> str:
    """Return the name that is read here: of a variable, or of an attribute."""
    if isinstance(node, ast.Attribute):
        module = node.value.id if isinstance(node.value, ast.Name) else ""
        return "" if node.attr in THREADS and module != "threading" else node.attr
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def _annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all parts of annotations, which start nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            yield from ast.walk(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield from ast.walk(node.returns)


def _of(node: ast.AST, owners: set[str]) -> bool:
    """Return whether this is an attribute of one of `owners`."""
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners


def _task_groups(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncWith):
            for item in node.items:
                if "TaskGroup(" in ast.unparse(item.context_expr) and item.optional_vars:
                    yield ast.unparse(item.optional_vars)


def _pools(tree: ast.AST) -> Iterator[str]:
    """Yield what a pool of threads or processes is assigned to, and the pools themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in POOLS:
            yield ast.unparse(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            if isinstance(node.value, ast.Call) and _called(node.value) in POOLS:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from map(ast.unparse, targets)
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                made = item.context_expr
                if isinstance(made, ast.Call) and _called(made) in POOLS and item.optional_vars:
                    yield ast.unparse(item.optional_vars)


def _called(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_work_starts_beside_other_work_but_by_the_supervised_ways(folder: str) -> None:
    paths = [path for path in (ROOT / folder).rglob("*.py") if path != HOME]
    assert paths
    found = {
        str(path.relative_to(ROOT)): starts
        for path in paths
        if (starts := bare_starts(path.read_text()))
    }
    assert not found, "see core/supervised.py for how to start work"


def test_the_supervised_ways_themselves_are_found() -> None:
    """This test would notice a change of what it looks for."""
    names = {line.partition(": ")[2] for line in bare_starts(HOME.read_text())}
    assert names >= {"create_task", "run_coroutine_threadsafe", "Thread"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("asyncio.create_task(work())", ["create_task"]),
        ("loop.create_task(work())", ["create_task"]),
        ("start = asyncio.ensure_future", ["ensure_future"]),
        ("from asyncio import create_task as start", ["create_task"]),
        ("from threading import Thread", ["Thread"]),
        ("threading.Thread(target=run).start()", ["Thread"]),
        ("class Mine(threading.Thread): ...", ["Thread"]),
        ("threading.Timer(1, run).start()", ["Timer"]),
        ("asyncio.run_coroutine_threadsafe(work(), loop)", ["run_coroutine_threadsafe"]),
        ("self.pool = ThreadPoolExecutor(1)\nself.pool.submit(run)", ["submit"]),
        ("with futures.ThreadPoolExecutor(1) as pool:\n    pool.map(f, x)\n    pool.submit(f)",
         ["submit"]),
        ("async with asyncio.TaskGroup() as group:\n    group.create_task(work())", []),
        ("pool = ThreadPoolExecutor(1)\nloop.run_in_executor(pool, run)\nengine.submit(spec)", []),
        ("await asyncio.to_thread(run)\nx: threading.Thread | None = started", []),
        ("def ended(thread: threading.Thread) -> threading.Thread: ...", []),
    ],
)  # fmt: skip
def test_what_starts_work_is_found_whatever_its_form(source: str, found: list[str]) -> None:
    assert [line.partition(": ")[2] for line in bare_starts(source)] == found
