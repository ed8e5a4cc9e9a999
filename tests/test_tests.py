"""Rules for the tests themselves: what runs beside what."""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parent
CLUSTERS = ("Cluster(", "running(", "some_ray(", "by_hand(", "upgraded_but(")
"""Calls that start a cluster, in tests of the folder `deploy`."""


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
