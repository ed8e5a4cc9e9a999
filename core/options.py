"""The declaration of an option: one field of a frozen dataclass, with what an operator must know.

The field's name, type and default are the option's. The command line, its help, the page of
options and the settings of processes all derive from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import TypeVar, get_type_hints

T = TypeVar("T")
_KEY = "option"


class Group(StrEnum):
    """The headings of the help, in its order."""

    ASKED = "The cluster that is asked"
    MODEL = "Model"
    WORKERS = "Workers"
    ADDRESSES = "Addresses"
    ACCESS = "Access of clients"
    COMMAND = "This command"
    MEMORY = "Memory and batches"
    CACHE = "Prefix cache"
    DRAFTS = "Draft tokens"
    ANSWERS = "Requests and answers"
    ROUTING = "Placement and queues of requests"
    LIMITS = "Limits of clients"
    RECORDS = "Logs, traces and records"
    INSIDE = "Inside the cluster"
    TRANSFER = "Transfer of state"
    RAY = "Ray and its nodes"
    DEBUGGING = "Debugging"


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `least` to `most`."""

    least: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class Number:
    """Finite numbers from `least` to `most`."""

    least: float | None = None
    most: float | None = None
    above: bool = False  # more than `least`
    over: float = 0.0  # more than this, or 0; 0: any
    unit: str = ""  # for the error of an infinite one


@dataclass(frozen=True)
class Words:
    """A few words, and what each stands for."""

    meanings: Mapping[str, object]


@dataclass(frozen=True)
class TokensOr:
    """Whole numbers of tokens from 1, or a few words, which each stand for a value."""

    words: Mapping[str, int | None]


@dataclass(frozen=True)
class File:
    """The path of a file; made absolute."""

    exists: bool = True  # False: it need not


@dataclass(frozen=True)
class Folder:
    """The path of a folder, which need not exist; made absolute."""


@dataclass(frozen=True)
class FolderOrName:
    """The path of a folder, or a name that is known elsewhere."""


@dataclass(frozen=True)
class ReadText:
    """A text, and the function that reads it: raises ConfigError or ValueError."""

    read: Callable[[str], object]


Values = Whole | Number | Words | TokensOr | File | Folder | FolderOrName | ReadText


@dataclass(frozen=True)
class Option:
    """The part of a declaration that the field itself does not say."""

    group: Group
    help: str
    values: Values | None  # None: those of the field's type
    names: tuple[str, ...]  # none: that of the field
    factor: float  # the field's value divided by the option's
    metavar: str | None
    envvar: str | None
    required: bool
    shows_default: bool
    secret: bool


@dataclass(frozen=True)
class Declared:
    """An option, and the field that it sets."""

    option: Option
    field: str
    kind: object  # the field's type
    default: object  # the field's; None where it is made anew each time

    @property
    def names(self) -> tuple[str, ...]:
        """Return the option's names, the main one first. A truth that is the default is turned off
        by a name with `no`.
        """
        no = "no-" if self.default is True else ""
        return self.option.names or (f"--{no}{self.field.replace('_', '-')}",)

    @property
    def key(self) -> str:
        """Return the name under which the command line gives the option's value."""
        return self.names[0].removeprefix("--").replace("-", "_")


def option(
    default: T,
    group: Group,
    help: str,
    values: Values | None = None,
    *,
    names: tuple[str, ...] = (),
    factor: float = 1,
    metavar: str | None = None,
    envvar: str | None = None,
    required: bool = False,
    shows_default: bool = True,
    secret: bool = False,
) -> T:
    """Return a field of a dataclass that an option sets.

    factor: the field's value divided by the option's, where their units differ. names: where the
    option is not called as the field is. secret: left out where the dataclass is printed, and
    refused in a file.
    """
    declared = Option(
        group, help, values, names, factor, metavar, envvar, required, shows_default, secret
    )
    if isinstance(default, dict):
        return field(default_factory=lambda: default, metadata={_KEY: declared})
    return field(default=default, repr=not secret, metadata={_KEY: declared})


def declared_in(kind: type) -> tuple[Declared, ...]:
    """Return the options that a dataclass declares itself or inherits, in order."""
    hints = get_type_hints(kind)
    return tuple(
        Declared(
            each.metadata[_KEY],
            each.name,
            hints[each.name],
            None if each.default is MISSING else each.default,
        )
        for each in fields(kind)
        if _KEY in each.metadata
    )


def parts_of(kind: type) -> dict[str, type]:
    """Return the fields of a dataclass that are dataclasses with options themselves."""
    hints = get_type_hints(kind)
    named = {each.name: hints[each.name] for each in fields(kind)}
    return {
        name: part
        for name, part in named.items()
        if isinstance(part, type) and is_dataclass(part) and all_in(part)
    }


def all_in(kind: type) -> tuple[Declared, ...]:
    """Return the options that a dataclass and its parts declare."""
    return declared_in(kind) + tuple(
        each for part in parts_of(kind).values() for each in all_in(part)
    )
