"""Ray's label selectors: which values of a node's label a worker accepts.

`fast` is one value, `in(a,b)` one of several; `!` before either accepts every other value, and a
node without the label too. Ray places by them; this module tells which nodes that leaves.
"""

import re
from collections.abc import Iterable, Mapping

_NAME = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_SELECTOR = re.compile(rf"(!?)(?:in\(({_NAME}(?:, ?{_NAME})*)\)|({_NAME}))")
_KEY = re.compile(rf"(?:(?:{_NAME}\.)*{_NAME}/)?{_NAME}")


def check_key(key: str) -> None:
    """Raise ValueError for a key that no label can have."""
    if not _KEY.fullmatch(key):
        raise ValueError(
            f"{key!r} is not the key of a label: letters, digits and _.- between them, at most 63"
        )


def check_selector(selector: str) -> None:
    """Raise ValueError for what is not a selector."""
    _parse(selector)


def selects(labels: Iterable[tuple[str, str]], of_node: Mapping[str, str]) -> bool:
    """Return True if a node with the labels `of_node` satisfies every (key, selector)."""
    return all(_accepts(selector, of_node.get(key)) for key, selector in labels)


def _accepts(selector: str, value: str | None) -> bool:
    negated, values = _parse(selector)
    return (value in values) != negated


def _parse(selector: str) -> tuple[bool, list[str]]:
    """Return True for a selector that begins with `!`, and the values that it names."""
    found = _SELECTOR.fullmatch(selector)
    if found is None:
        raise ValueError(
            f"{selector!r} selects no value of a label; expected VALUE, !VALUE, in(A,B) or !in(A,B)"
        )
    values = found[2].split(",") if found[2] else [found[3]]
    return bool(found[1]), [value.strip() for value in values]
