"""The chart's values and templates, as far as they can be checked without helm."""

import copy
import re
from typing import Any

import click
import jsonschema
import pytest
import yaml
from operate.rendered import CHART, VALUES

from baton import __version__
from baton.deploy.commands.router import router
from baton.deploy.commands.worker import worker

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = yaml.safe_load((CHART / "values.schema.json").read_text())
ARGUMENTS = (CHART / "templates" / "_arguments.tpl").read_text()


def merged(defaults: Any, given: Any) -> Any:
    """Return the values as helm merges them: a null removes a default."""
    if not (isinstance(defaults, dict) and isinstance(given, dict)):
        return given
    found = copy.deepcopy(defaults)
    for key, value in given.items():
        found[key] = merged(defaults.get(key), value)
    return {key: value for key, value in found.items() if value is not None}


def refusal(given: Any) -> str:
    """Return what the schema says against values; an empty text if nothing."""
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(SCHEMA).iter_errors(merged(DEFAULTS, given))
    )
    return "" if error is None else f"{error.json_path}: {error.message}"


def names_of(command: click.Command) -> set[str]:
    return {name for each in command.params for name in each.opts}


def test_the_schema_takes_the_defaults_and_every_set_of_values() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert len(VALUES) >= 10
    for path in VALUES:
        assert refusal(yaml.safe_load(path.read_text())) == "", path.name


def test_the_schema_and_the_defaults_have_the_same_names() -> None:
    def names(schema: Any, values: Any, where: str) -> None:
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        if "properties" not in schema:
            return
        assert set(schema["properties"]) - {"global"} == set(values), where
        for name, value in values.items():
            names(schema["properties"][name], value, f"{where}.{name}")

    names(SCHEMA, DEFAULTS, "values")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"router": {"replica": 3}}, "replica"),
        ({"router": {"replicas": 0}}, "replicas"),
        ({"decode": {"replicas": -1}}, "replicas"),
        ({"decode": {"options": {"drain": 5}}}, "drain"),
        ({"decode": {"options": {"--tp": 2}}}, "--tp"),
        ({"cluster": "Blue.1"}, "Blue.1"),
        ({"certificates": {"source": "vault"}}, "vault"),
        ({"model": {"volume": {"nfs": {}, "emptyDir": {}}}}, "volume"),
        ({"user": {"id": 0}}, "id"),
        ({"acces": {"insecure": True}}, "acces"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(given: dict[str, Any], named: str) -> None:
    assert named in refusal(given)


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


@pytest.mark.parametrize("command", [router, worker])
def test_the_commands_have_every_option_that_the_chart_gives(command: click.Command) -> None:
    (text,) = re.findall(
        rf'define "baton.{command.name}.arguments".*?(?=define "baton|\Z)', ARGUMENTS, re.DOTALL
    )
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    given = set(re.findall(r"^ *- \"?(--[a-z-]+)", text + helpers, re.MULTILINE))
    assert len(given) >= 10
    assert given <= names_of(command)
    assert {f"--{name}" for name in DEFAULTS["options"]} <= names_of(command)


def test_the_chart_refuses_the_options_that_it_sets() -> None:
    refused = set(SCHEMA["$defs"]["options"]["propertyNames"]["not"]["enum"])
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    given = set(re.findall(r"^ *- \"?--([a-z-]+)", ARGUMENTS + helpers, re.MULTILINE))
    assert given <= refused
