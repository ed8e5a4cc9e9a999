"""The options of a command as click has them, made of the dataclasses that declare them."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, EnumType
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from baton.core.errors import ConfigError
from baton.core.options import (
    Declared,
    File,
    Folder,
    FolderOrName,
    Group,
    Number,
    ReadText,
    TokensOr,
    Whole,
    Words,
    all_in,
    declared_in,
    parts_of,
)
from baton.deploy.errors import StartError
from baton.deploy.options.number_types import Finite, TokensOrWord
from baton.deploy.options.setting import Setting
from baton.deploy.options.value_schema import is_flag, kind_of, takes_several
from baton.deploy.options.yaml_document import ConfigFileError

T = TypeVar("T")
P = ParamSpec("P")
_SETTINGS, _TYPED = "baton.settings", "baton.typed"


class GroupedOption(click.Option):
    """An option under one heading of the help. Its value may come from a file."""

    def __init__(self, names: Sequence[str], declared: Declared) -> None:
        option, flag = declared.option, is_flag(declared)
        shown = None if option.required else shown_default(declared)
        super().__init__(
            names,
            type=None if flag else click_type(declared),
            default=shown,
            show_default=option.shows_default and shown not in (None, "") and shown is not False,
            help=option.help,
            is_flag=flag,
            multiple=takes_several(declared),
            required=option.required,
            metavar=option.metavar,
            envvar=option.envvar,
        )
        self.group = option.group
        self.declared = declared

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, click.Parameter]
    ) -> tuple[object, ParameterSource]:
        """Return the value and where it is from: the command line, then the file, then the
        environment, then the default. Raises ConfigFileError for one that its type does not have.
        """
        setting = settings_of(ctx).get(self.declared.key)
        if setting is None or self.declared.key in opts:
            return super().consume_value(ctx, opts)
        try:
            _read(self.declared, self.type_cast_value(ctx, setting.value))
        except click.BadParameter as err:
            raise ConfigFileError(f"{setting.source}: {setting.name}: {err.message}") from err
        except StartError as err:
            raise ConfigFileError(f"{setting.source}: {err}") from err
        return setting.value, ParameterSource.DEFAULT_MAP


def settings_of(ctx: click.Context) -> Mapping[str, Setting]:
    """Return what the command's file says, by `Declared.key`."""
    found: Mapping[str, Setting] = ctx.meta.get(_SETTINGS, {})
    return found


def typed_in(ctx: click.Context) -> Mapping[str, object]:
    """Return the command line's values as they were typed, by `Declared.key`."""
    found: Mapping[str, object] = ctx.meta.get(_TYPED, {})
    return found


def keep_settings(
    ctx: click.Context, settings: Mapping[str, Setting], typed: Mapping[str, object]
) -> None:
    """Keep what a command's file and its command line say, before its options are read."""
    ctx.meta[_SETTINGS], ctx.meta[_TYPED] = settings, typed


class GroupedCommand(click.Command):
    """A command whose help has its options under headings, in the order of `Group`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options without a group first."""
        rows: dict[Group | None, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                group = param.group if isinstance(param, GroupedOption) else None
                rows.setdefault(group, []).append(record)
        for group in (None, *Group):
            if group in rows:
                with formatter.section(group or "Options"):
                    formatter.write_dl(rows[group])


def takes(kind: type[T]) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Give a command the options that a dataclass and its parts declare, by group and then in the
    order of their declaration. The command gets the dataclass as its first argument.
    """
    order = list(Group)
    options = sorted(options_of(kind), key=lambda each: order.index(each.option.group))

    def add(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        @wraps(command)
        def run(*args: P.args, **values: P.kwargs) -> None:
            declared = {each.key: values.pop(each.key) for each in options}
            command(read_options(kind, declared), *args, **values)

        for each in reversed(options):
            run = click.option(*each.names, each.key, cls=GroupedOption, declared=each)(run)
        return run

    return add


def read_options(kind: type[T], values: Mapping[str, object]) -> T:
    """Return the dataclass that the options' values make.

    values: as click gives them, by `Declared.key`; None where an option was left out. Raises
    StartError.
    """
    made: dict[str, object] = {
        name: read_options(part, values) for name, part in parts_of(kind).items()
    }
    for declared in declared_in(kind):
        if values[declared.key] is not None:
            made[declared.field] = _read(declared, values[declared.key])
    try:
        return kind(**made)
    except ConfigError as err:
        raise StartError(str(err)) from err


def options_of(kind: type) -> list[Declared]:
    """Return all options, each once: several parts may have one, but only the same."""
    found: dict[str, Declared] = {}
    for declared in all_in(kind):
        if found.setdefault(declared.key, declared).option != declared.option:
            raise TypeError(f"{kind.__name__} declares {declared.names[0]} in two ways")
    return list(found.values())


def click_type(declared: Declared) -> click.ParamType[object]:
    match declared.option.values:
        case Whole(least, most):
            return click.IntRange(least, most)
        case Number() as number:
            return Finite(number)
        case TokensOr() as tokens:
            return TokensOrWord(tokens)
        case Words(meanings):
            return click.Choice(list(meanings), case_sensitive=False)
        case File(exists):
            return click.Path(exists=exists, dir_okay=False, path_type=Path)
        case Folder():
            return click.Path(file_okay=False, path_type=Path)
        case ReadText() | FolderOrName():
            return click.STRING
    kind = kind_of(declared)
    if isinstance(kind, EnumType):
        return click.Choice([str(each) for each in list[Enum](kind)])
    if kind is int:
        return click.INT
    return Finite(Number()) if kind is float else click.STRING


def shown_default(declared: Declared) -> object:
    """Return the default in the option's words and unit."""
    default, values = declared.default, declared.option.values
    if is_flag(declared):
        return False
    if default == ():
        return None
    if isinstance(values, Words | TokensOr):
        words = values.meanings if isinstance(values, Words) else values.words
        return next((word for word, meaning in words.items() if meaning == default), None)
    if isinstance(default, Enum):
        return default.value
    if isinstance(default, int | float) and declared.option.factor != 1:
        in_its_unit = default / declared.option.factor
        return int(in_its_unit) if isinstance(values, Whole) else in_its_unit
    return default


def _read(declared: Declared, value: object) -> object:
    """Return the field's value for that of the option. Raises StartError."""
    kind, values, factor = kind_of(declared), declared.option.values, declared.option.factor
    if isinstance(values, Words):
        return values.meanings[str(value)]
    if isinstance(values, ReadText):
        try:
            return values.read(str(value))
        except (ConfigError, ValueError) as err:
            raise StartError(f"{declared.names[0]}: {err}") from err
    if isinstance(value, Path):
        return value.absolute()
    if isinstance(kind, EnumType):
        return kind(value)
    if is_flag(declared):
        return value is not declared.default  # a flag turns the default round
    if isinstance(value, int | float) and factor != 1:
        return round(value * factor) if kind is int else value * factor
    return value
