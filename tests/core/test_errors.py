"""The error tree and its table of codes."""

import ast
import importlib
import re
from pathlib import Path

import grpc
import pytest
from test_layout import MAY_IMPORT

from baton.core import errors
from baton.core.error_codes import ERROR_STATUS, ErrorCode
from baton.core.errors import BatonError, RequestError
from baton.proto import common_pb2

ROOT = Path(__file__).resolve().parents[2]
# HTTP statuses that a client may meet with each gRPC status; by google.rpc.Code, but that 413 and
# 499 are more exact than 400 and a closed connection, and that a layout's mismatch is our fault.
HTTP_OF = {
    "INVALID_ARGUMENT": {400, 413}, "NOT_FOUND": {404}, "RESOURCE_EXHAUSTED": {429},
    "CANCELLED": {499}, "DEADLINE_EXCEEDED": {504}, "UNAVAILABLE": {503},
    "FAILED_PRECONDITION": {500}, "DATA_LOSS": {500}, "INTERNAL": {500},
    "UNAUTHENTICATED": {401}, "PERMISSION_DENIED": {403}, "ABORTED": {409},
}  # fmt: skip


def exceptions() -> dict[str, tuple[str, str]]:
    """Each exception class of the project: its name, its base's, and its module's."""
    found: dict[str, tuple[str, str]] = {}
    bases = {name for name in dir(errors) if name.endswith("Error")} | {"Exception", "ValueError"}
    paths = [p for room in MAY_IMPORT for p in sorted((ROOT / room).rglob("*.py"))]
    for _ in range(4):  # levels of inheritance
        for path in paths:
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ClassDef) or len(node.bases) != 1:
                    continue
                base = node.bases[0]
                if isinstance(base, ast.Name) and base.id in bases:
                    module = ".".join(("baton", *path.relative_to(ROOT).with_suffix("").parts))
                    found[node.name] = (base.id, module)
        bases |= set(found)
    return found


EXCEPTIONS = exceptions()


def diagram() -> dict[str, tuple[str, str]]:
    """The tree in the docstring: each class's base, and the word behind it."""
    found, above = {}, {}
    for line in (errors.__doc__ or "").splitlines():
        if line.startswith("BatonError"):
            found["BatonError"], above[0] = ("Exception", "INTERNAL"), "BatonError"
        elif match := re.match(r"([│├└─ ]+) (\w+) +(\w+)", line):
            depth = len(match[1]) // 4 + 1
            above[depth] = match[2]
            found[match[2]] = (above[depth - 1], match[3])
    return found


def test_every_exception_of_the_project_stands_in_the_tree_and_in_its_diagram() -> None:
    assert len(EXCEPTIONS) > 25
    assert {name: base for name, (base, _) in EXCEPTIONS.items()} == {
        name: base for name, (base, _) in diagram().items()
    }


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_every_error_has_one_code_which_the_diagram_names(name: str) -> None:
    module = EXCEPTIONS[name][1]
    if module.startswith("baton.bench.gpu"):
        pytest.importorskip("triton")
    kind = getattr(importlib.import_module(module), name)
    assert issubclass(kind, BatonError)
    shown = diagram()[name][1]
    if shown in ErrorCode.__members__:
        assert kind.code is ErrorCode[shown]
    assert kind.code in ERROR_STATUS


def test_every_code_has_a_row_and_a_name_in_the_contract() -> None:
    contract = {name for name, number in common_pb2.ErrorCode.items() if number}
    assert {code.name for code in ErrorCode} == {code.name for code in ERROR_STATUS} == contract
    assert all(code.value == code.name.lower() for code in ErrorCode)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_code_says_the_same_by_grpc_and_by_http(code: ErrorCode) -> None:
    status = ERROR_STATUS[code]
    assert status.grpc in grpc.StatusCode.__members__
    assert status.http in HTTP_OF[status.grpc]
    ours = (
        status.grpc in {"UNAVAILABLE", "DEADLINE_EXCEEDED"} or status.openai_type == "server_error"
    )
    assert ours == (status.http >= 500)


def test_a_client_repeats_only_what_another_worker_could_do_too() -> None:
    rows = ERROR_STATUS.values()
    assert all(row.replaceable for row in rows if row.retryable)
    # A fault of ours: the cluster has tried other workers before the client hears of it.
    assert not ERROR_STATUS[ErrorCode.INTERNAL].retryable
    assert ERROR_STATUS[ErrorCode.INTERNAL].replaceable
    # The request's own fault, or nobody who waits: no worker could do better.
    final = {code for code, row in ERROR_STATUS.items() if not row.replaceable}
    assert final == {
        ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND, ErrorCode.TOO_LARGE, ErrorCode.CANCELLED,
        ErrorCode.UNAUTHENTICATED, ErrorCode.PERMISSION_DENIED, ErrorCode.CONFLICT,
    }  # fmt: skip


def test_an_error_carries_the_field_and_the_values_that_differ() -> None:
    error = RequestError("top_p is 2", "top_p", "0 to 1", "2")
    assert (error.message, error.field, error.expected, error.actual) == (
        "top_p is 2", "top_p", "0 to 1", "2",
    )  # fmt: skip
    assert error.status.http == 400
