"""Every message of docs/troubleshooting.md stands in the code, and every status code there."""

import ast
import functools
import re
from collections.abc import Iterator

import pytest
from test_layout import ROOT, our_files

from baton.core.error_codes import ERROR_STATUS

PAGE = ROOT / "docs" / "troubleshooting.md"
LEAST_MESSAGES = 60
VARIABLE = "…"
STATUSES_OF_HTTP = {408, 415, 431, 501}  # that no ErrorCode has: of the server's own parser


def spoken(node: ast.AST) -> str:
    """Return a text of the code as people read it: with `…` in place of each value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(spoken(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return spoken(node.left) + spoken(node.right)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[-.0-9]*[sdgr]", VARIABLE, node.value)
    return VARIABLE


def spelled(text: str) -> str:
    """Return the text without the marks of code, and with one `…` in place of several values."""
    return re.sub(r"…[…\s]*…", VARIABLE, text.replace("`", "")).strip()


@functools.cache
def said() -> tuple[str, ...]:
    """Return the texts of all product files that are longer than a word."""
    return tuple(
        text
        for path in our_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if " " in (text := spelled(spoken(node)))
    )


def rows() -> Iterator[list[str]]:
    """Yield the cells of all rows of the page's tables, without the headings."""
    for line in PAGE.read_text().splitlines():
        if line.startswith("|") and not line.startswith(("|---", "| message", "| status")):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def messages() -> list[str]:
    return [cells[1].strip("`") if cells[0].isdigit() else cells[0].strip("`") for cells in rows()]


def parts(message: str) -> list[str]:
    """Return what a message says between its values."""
    return [part for part in message.split(VARIABLE) if part.strip()]


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_page_stands_in_the_code(message: str) -> None:
    pattern = re.compile(re.escape(spelled(message)).replace(VARIABLE, ".{0,200}?"), re.DOTALL)
    assert parts(message) and any(pattern.search(text) for text in said())


def test_the_page_has_the_messages_that_an_operator_meets() -> None:
    assert len(messages()) >= LEAST_MESSAGES
    assert len(set(messages())) == len(messages())
    assert all(len(cells) >= 3 and all(cells[:3]) for cells in rows())


def test_each_status_code_has_a_row_with_its_code_of_grpc() -> None:
    answers = {int(cells[0]): cells for cells in rows() if cells[0].isdigit()}
    wanted = {status.http for status in ERROR_STATUS.values()} | STATUSES_OF_HTTP
    assert answers.keys() == wanted
    for status in ERROR_STATUS.values():
        assert status.grpc in answers[status.http][4]


def test_a_message_that_nobody_says_is_not_found() -> None:
    """This test would notice a page that has drifted from the code."""
    with pytest.raises(AssertionError):
        test_a_message_of_the_page_stands_in_the_code("the request failed; … no reason at all")


def test_texts_of_the_code_are_read_with_their_values() -> None:
    source = ast.parse("""f"{a} of {b!r}: " f"{c}" """, mode="eval").body
    assert spelled(spoken(source)) == "… of …: …"
    assert spelled(spoken(ast.parse('"%s has %d of `x`"', mode="eval").body)) == "… has … of x"
