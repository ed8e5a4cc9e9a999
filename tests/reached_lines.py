"""The statements of functions that contain a word, and which of them a test reaches."""

import ast
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

_BODIES = {"body", "orelse", "finalbody", "handlers", "decorator_list"}
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class ReachedLines:
    """The statements, by file, line and function; those that were reached are taken out."""

    root: Path
    statements: dict[tuple[str, int], str] = field(default_factory=dict)

    @classmethod
    def that_name(cls, word: str, root: Path, rooms: list[str]) -> Self:
        """Find the statements whose own names and strings have `word`, docstrings left out."""
        found = cls(root)
        for path in sorted(path for room in rooms for path in (root / room).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for function in (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)):
                for node in ast.walk(function):
                    if node is not function and isinstance(node, ast.stmt) and _names(node, word):
                        found.statements[str(path), node.lineno] = function.name
        return found

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Take out what this thread, and those that it starts, reach inside."""
        files = {path for path, _ in self.statements}
        before = sys.gettrace()

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                self.statements.pop((frame.f_code.co_filename, frame.f_lineno), None)
            return line

        def call(frame: FrameType, event: str, argument: Any) -> Any:
            return line if frame.f_code.co_filename in files else None

        threading.settrace(call)
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]

    @property
    def left(self) -> set[str]:
        """Return the functions with a statement that was not reached, as `room/file.py: name`."""
        return {
            f"{Path(path).relative_to(self.root)}: {name}"
            for (path, _), name in self.statements.items()
        }


def _names(statement: ast.stmt, word: str) -> bool:
    """Return True if a statement names `word` outside the statements that it contains."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    own = [value for name, value in ast.iter_fields(statement) if name not in _BODIES]
    parts = [node for value in own for node in (value if isinstance(value, list) else [value])]
    return any(
        word in str(getattr(node, name, "")) and not isinstance(node, ast.stmt)
        for part in parts
        if isinstance(part, ast.AST)
        for node in ast.walk(part)
        for name in ("id", "attr", "value")
        if isinstance(getattr(node, name, None), str)
    )
