"""A YAML file of settings with the line of each, read without what such a file does not need:
anchors, tags, several documents, keys that stand twice.

Words are those of YAML 1.2: `off` and `no` are texts, only `true` and `false` are truths.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from baton.deploy.errors import StartError

Scalar = str | int | float | bool | None
MOST_BYTES = 1 << 20
_DEEPEST = 3  # the document, a section, a list
_LONGEST_NUMBER = 100  # characters
_WORDS: Mapping[str, Scalar] = {"~": None, "": None} | {
    spelt: value
    for word, value in (("true", True), ("false", False), ("null", None))
    for spelt in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class YamlEntry:
    """One key of a mapping, its line, and its value: one, a list, or a mapping."""

    key: str
    line: int
    value: "Scalar | list[Scalar] | tuple[YamlEntry, ...]"


class ConfigFileError(StartError):
    """A file of settings that cannot be used. The message has a line for each thing that is wrong:
    file, line, what is wrong, what would be right.
    """


def read_document(path: Path) -> tuple[YamlEntry, ...]:
    """Return the keys of a file, in order; none of an empty file. Raises ConfigFileError."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigFileError(f"{path}: cannot be read: {err}") from err
    if len(content) > MOST_BYTES:
        raise ConfigFileError(f"{path}: has more than {MOST_BYTES} bytes; expected fewer")
    try:
        root = _Loader(text).get_single_node()
        return () if root is None else _entries(root)
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigFileError(f"{path}{line}: {err.problem or err.context}{_hint(err)}") from err
    except yaml.YAMLError as err:
        raise ConfigFileError(f"{path}: no YAML: {err}") from err


def _hint(err: yaml.MarkedYAMLError) -> str:
    """Return what would be right, where YAML's own errors do not say it."""
    if isinstance(err, yaml.scanner.ScannerError | yaml.parser.ParserError):
        return "; expected lines of `option: value`, those of a section indented alike"
    return ""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # mypy does not see its types
    """A reader of nodes that refuses references, tags and deep nesting where it meets them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: object, index: object) -> yaml.Node:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _error(event, "anchors and aliases are refused; write the value out")
        if getattr(event, "tag", None) is not None:
            raise _error(event, f"the tag {event.tag} is refused; leave it out")
        if self._depth > _DEEPEST:
            raise _error(event, "this is nested too deeply; expected `option: value`")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _error(at: yaml.Event | yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def _entries(node: yaml.Node) -> tuple[YamlEntry, ...]:
    if not isinstance(node, yaml.MappingNode):
        raise _error(node, "expected lines of `option: value`")
    found: dict[str, YamlEntry] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _error(key, "a key is the name of an option, as in `decode: 2`")
        name = str(key.value)
        if name in found:
            raise _error(key, f"{name} stands twice; line {found[name].line} has it too")
        found[name] = YamlEntry(name, key.start_mark.line + 1, _value(value))
    return tuple(found.values())


def _value(node: yaml.Node) -> Scalar | list[Scalar] | tuple[YamlEntry, ...]:
    if isinstance(node, yaml.MappingNode):
        return _entries(node)
    if isinstance(node, yaml.SequenceNode):
        return [_scalar(each) for each in node.value]
    return _scalar(node)


def _scalar(node: yaml.Node) -> Scalar:
    """Return a text in quotes as it is, and another one as YAML 1.2's core schema reads it."""
    if not isinstance(node, yaml.ScalarNode):
        raise _error(node, "a list has texts or numbers, one each")
    text = str(node.value)
    if node.style is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
