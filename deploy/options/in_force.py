"""The value of each option of a command, where it comes from, and the text of both."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import click
from click.core import ParameterSource

from baton.core.options import Declared, FolderOrName, Group, TokensOr
from baton.deploy.errors import StartError
from baton.deploy.options.click_options import (
    GroupedOption,
    keep_settings,
    options_of,
    read_options,
    settings_of,
    shown_default,
    typed_in,
)
from baton.deploy.options.setting import COMMAND_LINE, DEFAULT, Setting, Value
from baton.deploy.options.value_schema import takes_several

T = TypeVar("T")
_PLAIN = re.compile(r"[A-Za-z/_]([\w/.@:+-]*[\w/.@+-])?")  # needs no quotes in YAML
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # in some YAML
_VALUES = 43  # columns before the sources


def settings_in_force(ctx: click.Context) -> tuple[Setting, ...]:
    """Return a setting for each option of a command, in the order of its help, but for `--file`."""
    return tuple(
        _setting(ctx, param)
        for param in ctx.command.params
        if isinstance(param, GroupedOption) and param.declared.key != "file"
    )


def _setting(ctx: click.Context, param: GroupedOption) -> Setting:
    key, declared = param.declared.key, param.declared
    name = declared.names[0].removeprefix("--")
    source = ctx.get_parameter_source(key)
    if source is ParameterSource.DEFAULT_MAP:
        found = settings_of(ctx)[key]
        return Setting(name, found.value, found.source)
    if source is ParameterSource.DEFAULT:
        return default_of(declared)
    if source is ParameterSource.ENVIRONMENT:
        return Setting(name, _plain(declared, ctx.params[key]), f"environment, {param.envvar}")
    words = isinstance(declared.option.values, TokensOr)  # what they stand for is read already
    value = typed_in(ctx)[key] if words else ctx.params[key]
    return Setting(name, _plain(declared, value), COMMAND_LINE)


def default_of(declared: Declared) -> Setting:
    """Return the setting of an option that nobody has given."""
    name = declared.names[0].removeprefix("--")
    return Setting(name, _plain(declared, shown_default(declared)), DEFAULT)


def _plain(declared: Declared, value: object) -> Value:
    """Return a value of click's as a file would have it."""
    if takes_several(declared):
        return [str(each) for each in value] if isinstance(value, tuple) else None
    names_folder = isinstance(declared.option.values, FolderOrName) and Path(str(value)).is_dir()
    if isinstance(value, Path) or names_folder:
        return str(Path(str(value)).absolute())
    if isinstance(declared.option.values, TokensOr) and str(value).isdecimal():
        return int(str(value))
    assert value is None or isinstance(value, str | int | float)
    return value


def read_settings(kind: type[T], settings: Iterable[Setting]) -> T:
    """Return the dataclass of options that settings make, as a command line would.

    Those that nobody has given may be left out. Raises StartError.
    """
    options = options_of(kind)
    names = {name.removeprefix("--"): each.key for each in options for name in each.names}
    given = {}
    for each in settings:
        if each.name not in names:
            raise StartError(f"{each.source}: {each.name} is no option of this release")
        if each.source != DEFAULT and each.value is not None:
            given[names[each.name]] = each
    params = [GroupedOption([*each.names, each.key], declared=each) for each in options]
    ctx = click.Context(command := click.Command("settings", params=list(params)))
    keep_settings(ctx, given, {})
    command.parse_args(ctx, [])
    return read_options(kind, ctx.params)


def text_of(settings: Iterable[Setting], groups: Mapping[str, Group]) -> str:
    """Return settings as a file of settings with the source of each as a comment. An option
    without a value is a comment.

    groups: of each name; those without one come first.
    """
    under: dict[Group | None, list[str]] = {}
    for each in settings:
        under.setdefault(groups.get(each.name), []).append(_line(each))
    parts = []
    for group in (None, *Group):
        if group in under:
            parts.append("\n".join([f"# {group}", *under[group]] if group else under[group]))
    return "\n\n".join(parts)


def _line(setting: Setting) -> str:
    if setting.value is None:
        return f"{f'# {setting.name}:':<{_VALUES}} # {setting.source}"
    return f"{f'{setting.name}: {yaml_of(setting.value)}':<{_VALUES}} # {setting.source}"


def yaml_of(value: Value) -> str:
    """Return a value as YAML, 1.1 and 1.2, in one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(yaml_of, value))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
