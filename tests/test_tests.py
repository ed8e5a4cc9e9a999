"""Rules for the tests themselves: what runs beside what, and what may wait."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
TESTS = HERE.parent
CLUSTERS = ("Cluster(", "running(", "some_ray(", "by_hand(", "upgraded_but(")
"""Calls that start a cluster, in tests of the folder `deploy`."""
SLEEPS = {"time.sleep", "asyncio.sleep"}
STEPS = {"step", "plan_step", "run_step", "step_or_fail"}
FILES = sorted(path for path in TESTS.rglob("*.py") if "clients" not in path.parts)


def test_what_starts_a_cluster_is_marked() -> None:
    """`make test` runs clusters one after another, and chooses them by the mark."""
    for path in sorted((TESTS / "deploy").glob("test_*.py")):
        source = path.read_text()
        contexts = (
            ast.unparse(item.context_expr)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.With | ast.AsyncWith)
            for item in node.items
        )
        if any(context.startswith(CLUSTERS) for context in contexts):
            assert "pytest.mark.cluster" in source or "pytest.mark.chaos" in source, path.name


def test_what_is_marked_lies_in_a_folder_that_make_test_looks_through() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    folders = re.findall(r"^CLUSTERS = (.*)$", makefile, re.MULTILINE)[0].split()
    marked = [path for path in FILES if "pytest.mark.cluster" in path.read_text()]
    inside = {path.relative_to(TESTS).parts[0] for path in marked if path.parent != TESTS}
    assert {"tests/chaos", "tests/e2e", *(f"tests/{name}" for name in inside)} == set(folders)


def fixed_sleeps(source: str) -> Iterator[int]:
    """Yield the lines of sleeps that are neither between two looks of a loop, nor followed by a
    comment that says what the time is for."""
    lines = source.splitlines()
    for node, around in _with_loops(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS:
            yields = ast.unparse(node.args[0]) == "0"
            explained = "#" in lines[(node.end_lineno or node.lineno) - 1]
            if not around and not yields and not explained:
                yield node.lineno


def endless_steps(source: str) -> Iterator[int]:
    """Yield the lines of loops that step an engine for ever where what they wait for never comes:
    neither do they end with its work, nor does anything in them fail."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.While) or "has_work" in ast.unparse(node.test):
            continue
        inside = [each for statement in node.body for each in ast.walk(statement)]
        calls = (
            ast.unparse(each.func)
            for each in inside
            if isinstance(each, ast.Call) and not each.keywords  # a model's step has rows
        )
        bounded = any(isinstance(each, ast.Assert | ast.Raise) for each in inside)
        timed = "monotonic" in ast.unparse(node.test)
        if any(call.split(".")[-1] in STEPS for call in calls) and not bounded and not timed:
            yield node.lineno


def _with_loops(
    node: ast.AST, around: tuple[ast.While, ...] = ()
) -> Iterator[tuple[ast.AST, tuple[ast.While, ...]]]:
    """Yield all nodes, each with the `while` loops of its function that it stands in."""
    yield node, around
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        around = ()
    elif isinstance(node, ast.While):
        around = (*around, node)
    for child in ast.iter_child_nodes(node):
        yield from _with_loops(child, around)


@pytest.mark.parametrize(
    ("find", "remedy"),
    [
        (fixed_sleeps, "wait by kit.polling, or say on the line what the time is for"),
        (endless_steps, "step by engine.engines.step_until"),
    ],
)
def test_no_test_waits_a_fixed_time_or_for_ever(
    find: Callable[[str], Iterator[int]], remedy: str
) -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}" for path in FILES for line in find(path.read_text())
    ]
    assert not found, remedy


def test_such_waits_are_found() -> None:
    assert list(fixed_sleeps("time.sleep(1)\ntime.sleep(1)  # a slow client")) == [1]
    assert list(fixed_sleeps("while not seen():\n    await asyncio.sleep(LOOK_S)")) == []
    assert list(fixed_sleeps("while more():\n    def f():\n        time.sleep(1)")) == [3]
    assert list(fixed_sleeps("await asyncio.sleep(0)")) == []
    assert list(endless_steps("while not events:\n    events += engine.step()")) == [1]
    assert list(endless_steps("while engine.has_work:\n    engine.step()")) == []
    assert list(endless_steps("while a:\n    assert engine.has_work\n    engine.step()")) == []
