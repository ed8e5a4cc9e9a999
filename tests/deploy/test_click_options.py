"""Options of a command from the dataclasses that declare them."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from parsed_arguments import parse

from baton.core.errors import ConfigError
from baton.core.options import (
    Declared,
    File,
    Group,
    Number,
    ReadText,
    TokensOr,
    Whole,
    Words,
    all_in,
    declared_in,
    option,
)
from baton.deploy.commands.router import router
from baton.deploy.commands.serve import serve
from baton.deploy.commands.worker import worker
from baton.deploy.errors import StartError
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.options.router import RouterArguments
from baton.deploy.options.serve import ServeArguments
from baton.deploy.options.worker import WorkerArguments

ROOT = Path(__file__).resolve().parent.parent.parent


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def whole(text: str) -> int:
    if text == "refused":
        raise ConfigError("it is refused")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """An option that two parts have."""

    lease_ms: int = option(
        3000, Group.INSIDE, "A lease.", Number(1, unit="seconds"), names=("--lease",), factor=1000
    )


@dataclass(frozen=True, kw_only=True)
class First(Shared):
    """An option of each kind."""

    colour: Colour = option(Colour.RED, Group.MODEL, "A colour.")
    size: int | None = option(None, Group.MODEL, "A size.", Whole(1))
    room_bytes: int = option(
        2 << 20, Group.MODEL, "A room in MiB.", Whole(1), names=("--room-mb",), factor=1 << 20
    )
    graphs: bool = option(True, Group.MODEL, "Without graphs.")
    canary: bool = option(False, Group.MODEL, "With a canary.")
    check: bool | None = option(None, Group.MODEL, "A check.", Words({"off": False, "full": True}))
    most: int | None = option(None, Group.MODEL, "Most.", TokensOr({"auto": None, "off": 0}))
    names: tuple[str, ...] = option((), Group.MODEL, "Names.", names=("--name",))
    file: Path | None = option(None, Group.MODEL, "A file.", File())
    number: int = option(7, Group.MODEL, "A number.", ReadText(whole))


@dataclass(frozen=True)
class Limits:
    """A part of a part, which checks itself."""

    body_s: float = option(1.0, Group.LIMITS, "A time.", names=("--body-timeout",))

    def __post_init__(self) -> None:
        if self.body_s == 13:
            raise ConfigError("body_s is 13")


@dataclass(frozen=True, kw_only=True)
class Second(Shared):
    limits: Limits = field(default_factory=Limits)
    decided: str = "by the process"


@dataclass(frozen=True, kw_only=True)
class Both:
    second: Second
    first: First
    own: str | None = option(None, Group.WORKERS, "Its own.")


def test_options_that_are_left_out_are_the_fields_defaults() -> None:
    assert parse(Both) == Both(second=Second(), first=First())


def test_each_value_is_read_in_the_fields_type_and_unit(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = parse(
        Both,
        "--colour", "blue", "--size", "4", "--room-mb", "3", "--no-graphs", "--canary",
        "--check", "off", "--most", "off", "--name", "a", "--name", "b",
        "--file", str(tmp_path / "file"), "--number", "8", "--lease", "1.25",
        "--body-timeout", "2.5", "--own", "x",
    )  # fmt: skip
    assert found.first == First(
        lease_ms=1250, colour=Colour.BLUE, size=4, room_bytes=3 << 20, graphs=False, canary=True,
        check=False, most=0, names=("a", "b"), file=tmp_path / "file", number=8,
    )  # fmt: skip
    assert found.second == Second(lease_ms=1250, limits=Limits(2.5))
    assert found.own == "x"
    assert parse(First, "--most", "12").most == 12


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").touch()
    assert parse(First, "--file", "here").file == tmp_path / "here"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--number", "x"), "--number: invalid literal"),
        (("--number", "refused"), "--number: it is refused"),
        (("--body-timeout", "13"), "body_s is 13"),
    ],
)
def test_what_a_dataclass_refuses_ends_the_start(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(StartError, match=re.escape(told)):
        parse(Both, *words)


def test_the_help_has_groups_in_their_order_and_defaults_in_the_options_units() -> None:
    @click.command(cls=GroupedCommand)
    @click.option("--more", help="Of the command alone.")
    @takes(Both)
    def command(arguments: Both, more: str | None) -> None:
        click.echo(f"{arguments.own} {more}")

    text = CliRunner().invoke(command, ["--help"]).output
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert headings == ["Options", "Model", "Workers", "Limits of clients", "Inside the cluster"]
    assert "[default: 2; x>=1]" in text and "[default: 3.0; x>=1]" in text
    assert "[default: red]" in text and "[default: auto]" in text
    assert CliRunner().invoke(command, ["--own", "a", "--more", "b"]).output == "a b\n"


def test_one_name_has_one_declaration() -> None:
    @dataclass(frozen=True)
    class Other:
        own: str | None = option(None, Group.WORKERS, "Another meaning.")

    @dataclass(frozen=True)
    class Clash:
        both: Both
        other: Other

    with pytest.raises(TypeError, match="Clash declares --own in two ways"):
        takes(Clash)


@pytest.mark.parametrize("command", [serve, router, worker])
def test_the_model_is_the_first_option_of_a_command(command: click.Command) -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.lstrip().startswith("--model"))
    assert first < 15


def declared(*kinds: type) -> dict[str, Declared]:
    return {each.option.help: each for kind in kinds for each in all_in(kind)}


def test_each_option_of_a_process_is_written_once() -> None:
    """No option that a dataclass declares is also built by hand in a command."""
    sources = [*(ROOT / "deploy").rglob("*.py"), ROOT / "bench/cluster/serve.py"]
    by_hand = "".join(path.read_text() for path in sources if "click.option(" in path.read_text())
    found = declared(ServeArguments, RouterArguments, WorkerArguments)
    assert len(found) > 100
    assert not [each.names[0] for meaning, each in found.items() if meaning[:40] in by_hand]


def test_options_are_inherited_with_their_declarations() -> None:
    (lease,) = (each for each in declared_in(First) if each.field == "lease_ms")
    assert lease in declared_in(Second)
    assert lease.names == ("--lease",) and lease.key == "lease"
