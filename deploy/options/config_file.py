"""The file of settings, `baton.yaml`: its sections, and what each command takes from it.

A key is an option's name without dashes. Keys at the top are for all commands that have the option;
those in a section for that command alone, and they beat those at the top.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import click

from baton.core.options import Declared, File, Folder, FolderOrName, Words
from baton.core.role import Role
from baton.deploy.options.click_options import GroupedCommand, keep_settings, options_of
from baton.deploy.options.router import RouterArguments
from baton.deploy.options.serve import ServeArguments
from baton.deploy.options.setting import Setting, Value
from baton.deploy.options.value_schema import is_valid, schema_of, takes_several, words_for
from baton.deploy.options.worker import WorkerArguments
from baton.deploy.options.yaml_document import ConfigFileError, YamlEntry, read_document

KINDS: Mapping[str, type] = {
    "serve": ServeArguments,
    "router": RouterArguments,
    "worker": WorkerArguments,
}
"""The commands that read a file, by name, and all their options."""

SECTIONS = {each: each for each in KINDS} | {
    f"{role}-worker": "worker" for role in (Role.PREFILL, Role.DECODE)
}
"""The sections, and the command of each. The last ones are for workers of one role."""

_NOT_IN_FILES = {"file"}


class FileCommand(GroupedCommand):
    """A command of `KINDS`, whose options may stand in a file that `-f` names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the file before the options. Raises ConfigFileError."""
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        path, role = given.get("file"), given.get("role")
        settings: Mapping[str, Setting] = {}
        if isinstance(path, str) and Path(path).is_file():
            settings = settings_for(Path(path), str(self.name), str(role) if role else None)
        keep_settings(ctx, settings, given)
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class _Problem:
    """A line with what is wrong in it, and what would be right."""

    line: int
    text: str


def settings_for(path: Path, command: str, role: str | None = None) -> dict[str, Setting]:
    """Return what a file says for a command, by `Declared.key`. Relative paths are from the file's
    folder.

    role: of a worker, from its command line; None: from the file. Raises ConfigFileError, which
    names everything that is wrong in the file, the sections of other commands too.
    """
    entries = read_document(path)
    problems = list(_problems(entries))
    found = _layer(path, entries, command)
    sections = {each.key: each.value for each in entries if isinstance(each.value, tuple)}
    found |= _layer(path, sections.get(command, ()), command)
    if command == "worker":
        said = found.get("role")
        role = role or (str(said.value) if said else None)
        found |= _layer(path, sections.get(f"{role}-worker", ()), command)
    if problems:
        problems.sort(key=lambda each: each.line)
        raise ConfigFileError("\n".join(f"{path}:{each.line}: {each.text}" for each in problems))
    return found


@cache
def names_of(command: str) -> Mapping[str, Declared]:
    """Return the options of a command that a file may set, by their names without dashes."""
    return {
        name.removeprefix("--"): each
        for each in options_of(KINDS[command])
        if each.key not in _NOT_IN_FILES
        for name in each.names
    }


def all_names() -> Mapping[str, Declared]:
    """Return the options of all commands by their names without dashes. The value of an option has
    one type in all commands that have it.
    """
    return {name: each for command in KINDS for name, each in names_of(command).items()}


def _layer(path: Path, entries: tuple[YamlEntry, ...], command: str) -> dict[str, Setting]:
    """Return the settings of the entries that are options of the command."""
    found = {}
    for entry in entries:
        declared = names_of(command).get(entry.key)
        if declared is not None and not isinstance(entry.value, tuple):
            value = _located(entry.value, declared, path)
            found[declared.key] = Setting(entry.key, value, f"{path.absolute()}:{entry.line}")
    return found


def _located(value: object, declared: Declared, path: Path) -> Value:
    """Return a value with its path, if it is one, from the folder of the file; of an option that
    may be given several times, a list; of one that names several values in a text, that text.
    """
    if takes_several(declared) and not isinstance(value, list):
        value = [value]
    if isinstance(value, list) and not takes_several(declared):
        value = ",".join(map(str, value))
    if isinstance(value, str):
        there = path.absolute().parent / value
        match declared.option.values:
            case File() | Folder():
                return str(there)
            case FolderOrName() if value.startswith(".") or there.is_dir():
                return str(there)
    return value  # type: ignore[return-value]  # `_problems` refuses all others


def _problems(entries: tuple[YamlEntry, ...]) -> Iterator[_Problem]:
    """Yield what is wrong in a whole file."""
    tops = all_names()
    yield from _twice(entries, tops)
    for entry in entries:
        if entry.key in SECTIONS:
            yield from _problems_of_section(entry)
        elif entry.key in tops:
            yield from _problem_of_value(entry, tops[entry.key])
        else:
            yield _Problem(entry.line, _unknown(entry.key, {*tops, *SECTIONS}, "no option"))


def _problems_of_section(section: YamlEntry) -> Iterator[_Problem]:
    command, inside = SECTIONS[section.key], section.value
    if inside is None:
        return  # a heading without lines
    if not isinstance(inside, tuple):
        what = f"{section.key} is a section; expected indented lines of `option: value`"
        yield _Problem(section.line, what)
        return
    names = names_of(command)
    yield from _twice(inside, names)
    for entry in inside:
        if entry.key in names:
            yield from _problem_of_value(entry, names[entry.key])
            continue
        others = [each for each in KINDS if entry.key in names_of(each)]
        if others:
            what = f"{entry.key} is no option of {command}, but of {' and '.join(others)}"
        else:
            what = _unknown(entry.key, set(names), f"no option of {command}")
        yield _Problem(entry.line, what)


def _twice(entries: tuple[YamlEntry, ...], names: Mapping[str, Declared]) -> Iterator[_Problem]:
    """Yield the second of two names of one option."""
    first: dict[str, YamlEntry] = {}
    for entry in entries:
        if entry.key in names:
            other = first.setdefault(names[entry.key].key, entry)
            if other is not entry:
                what = f"{entry.key} and {other.key} (line {other.line}) are one option; keep one"
                yield _Problem(entry.line, what)


def _unknown(key: str, known: set[str], what: str) -> str:
    dashless = key.lstrip("-").replace("_", "-").lower()
    near = get_close_matches(dashless, sorted(known), n=1)
    meant = f"; did you mean {near[0]}?" if near else "; `baton config schema` has all"
    return f"{key} is {what}{meant}"


def _problem_of_value(entry: YamlEntry, declared: Declared) -> Iterator[_Problem]:
    if declared.option.secret:
        what = f"{entry.key} is a secret: give it in the environment, as {declared.option.envvar}"
        yield _Problem(entry.line, what)
        return
    schema = schema_of(declared)
    if is_valid(entry.value, schema):
        return
    said = f"{entry.key} is {_shown(entry.value)}; expected {words_for(schema)}"
    yield _Problem(entry.line, said + _hint(entry.value, declared))


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, tuple):
        return "a section"
    if isinstance(value, bool):
        return str(value).lower()
    return f"the text {value!r}" if isinstance(value, str) else f"{value}"


def _hint(value: object, declared: Declared) -> str:
    """Return what a likely slip was; empty if there is none."""
    one = schema_of(declared)
    if value is None:
        return "; leave the line out for the default"
    if isinstance(value, bool | int | float) and is_valid("", one):
        return "; put it in quotes"
    if value is False and is_valid("off", one):  # as a program that writes YAML 1.1 has it
        return "; write off in quotes"
    if isinstance(value, str):
        words = declared.option.values
        near = get_close_matches(value, words.meanings if isinstance(words, Words) else (), n=1)
        return f"; did you mean {near[0]}?" if near else ""
    return ""
