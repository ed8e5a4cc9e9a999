"""`baton config`: the value of each option, and where it comes from."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from baton.core.options import Group, TokensOr, option
from baton.deploy.commands.config import config
from baton.deploy.options.click_options import options_of, takes
from baton.deploy.options.config_file import KINDS, FileCommand
from baton.deploy.options.file_option import FileOptions
from baton.deploy.options.in_force import settings_in_force, yaml_of
from baton.deploy.options.setting import Setting, Value, settings_from
from baton.deploy.options.yaml_document import read_document


def printed(*words: str) -> str:
    result = CliRunner().invoke(config, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def asked(*words: str) -> dict[str, Setting]:
    found = settings_from(json.loads(printed(*words, "--json")))
    return {each.name: each for each in found}


@pytest.mark.parametrize("command", KINDS)
def test_each_option_is_shown_with_its_source(command: str, tmp_path: Path) -> None:
    path = tmp_path / "baton.yaml"
    path.write_text(f"lease: 2\n{command}:\n  host: 127.0.0.2\n")
    found = asked(command, "-f", str(path), "--host", "127.0.0.3", "--served-model-name", "m")
    names = {each.names[0].removeprefix("--") for each in options_of(KINDS[command])}
    assert found.keys() == names - {"file"}
    assert found["lease"] == Setting("lease", 2, f"{path}:1")
    assert found["host"] == Setting("host", "127.0.0.3", "command line")
    assert found["served-model-name"].source == "command line"
    assert found["sse-ping-interval"].source == "default"
    assert asked(command, "-f", str(path))["host"] == Setting("host", "127.0.0.2", f"{path}:3")


@dataclass(frozen=True, kw_only=True)
class Regional(FileOptions):
    region: str = option("here", Group.MODEL, "A region.", envvar="BATON_TEST_REGION")
    most: int | None = option(None, Group.MODEL, "Most.", TokensOr({"auto": None, "off": 0}))


def test_a_value_of_the_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Setting] = []

    @click.command(cls=FileCommand)
    @takes(Regional)
    def command(arguments: Regional) -> None:
        found.extend(settings_in_force(click.get_current_context()))

    monkeypatch.setenv("BATON_TEST_REGION", "there")
    CliRunner().invoke(command, ["--most", "off"], catch_exceptions=False)
    assert found == [
        Setting("region", "there", "environment, BATON_TEST_REGION"),
        Setting("most", "off", "command line"),
    ]


def test_values_have_the_options_units_and_words(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("x")
    found = asked(
        "serve", "--prefill-here", "12", "--lease", "1.5", "--no-graphs", "--allowed-host", "a",
        "--max-body-mb", "3", "--verify", "off", "--chat-template", str(tmp_path / "t.jinja"),
    )  # fmt: skip
    values = {name: found[name].value for name in ("prefill-here", "lease", "no-graphs", "verify")}
    assert values == {"prefill-here": 12, "lease": 1.5, "no-graphs": True, "verify": "off"}
    assert (found["allowed-host"].value, found["max-body-mb"].value) == (["a"], 3)
    assert found["chat-template"].value == str(tmp_path / "t.jinja")
    assert found["prefill"].value == 1 and found["threads"].value is None


@pytest.mark.parametrize("command", KINDS)
def test_what_is_printed_is_a_file_with_the_same_values(command: str, tmp_path: Path) -> None:
    words = ("--host", "::1", "--allowed-host", "on", "--allowed-host", "b c", "--lease", "7")
    path = tmp_path / "baton.yaml"
    path.write_text(f"{command}:\n" + re.sub("^", "  ", printed(command, *words), flags=re.M))
    before, after = asked(command, *words), asked(command, "-f", str(path))
    assert {name: each.value for name, each in before.items()} == {
        name: each.value for name, each in after.items()
    }
    sources = {name: each.source for name, each in after.items()}
    unset = {name for name, each in before.items() if each.value is None}
    assert {name for name, source in sources.items() if source == "default"} == unset


def test_only_what_differs_is_shown_where_that_is_asked_for(tmp_path: Path) -> None:
    text = printed("serve", "--changed", "--decode", "2", "--offline")
    lines = [" ".join(line.split()) for line in text.splitlines() if line]
    assert lines == [
        "# Model", "offline: true # command line", "# Workers", "decode: 2 # command line"
    ]  # fmt: skip


def test_wrong_values_are_refused_as_the_command_itself_would(tmp_path: Path) -> None:
    result = CliRunner().invoke(config, ["router", "--decode", "2"])
    assert result.exit_code == 2 and "No such option" in result.output


@pytest.mark.parametrize(
    "value",
    ["off", "No", "5", "1.0", "true", "~", "", "a b", "a: b", "a #b", "::1", "-x", "[a", "ä", '"',
     "/models/m", "owner/name", "10.0.0.1:7000", "null", 3, 1.5, 1e-7, True, ["on", "x"]],
)  # fmt: skip
def test_a_value_is_read_back_as_it_was(value: Value, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"key: {yaml_of(value)}  # comment\n")
    (entry,) = read_document(path)
    assert entry.value == value and type(entry.value) is type(value)
