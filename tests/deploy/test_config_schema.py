"""The published schema against every option, and against what the commands accept."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from config_schema_page import PAGE, page
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.deploy.options.config_file import KINDS, SECTIONS, all_names, names_of, settings_for
from baton.deploy.options.config_schema import config_schema
from baton.deploy.options.value_schema import is_valid, schema_of
from baton.deploy.options.yaml_document import ConfigFileError

WHOLE = jsonschema.Draft202012Validator(config_schema())
VALUES = [
    None, True, False, 0, 1, -1, 2, 2.0, 0.5, 1.5, 65535, 65536, 1e9, "", "auto", "off", "x", "1",
    [], [1], ["a"], ["a", "b"], {}, {"a": 1},
]  # fmt: skip


def test_the_published_schema_is_that_of_the_options() -> None:
    assert PAGE.read_text() == page(), "run `make docs` and commit what it changes"
    jsonschema.Draft202012Validator.check_schema(config_schema())


def test_every_option_of_every_command_is_in_the_schema_with_its_meaning() -> None:
    schema: Any = config_schema()
    for command in KINDS:
        properties = schema["$defs"][command]["properties"]
        assert properties.keys() == names_of(command).keys()
        assert all(each["description"] for each in properties.values())
    assert schema["properties"].keys() == all_names().keys() | SECTIONS.keys()
    assert schema["$defs"]["serve"]["properties"]["decode"] == {
        "description": "Number of groups of workers that write answers.",
        "type": "integer", "minimum": 1, "default": 1,
    }  # fmt: skip


def test_an_option_has_one_type_in_all_commands() -> None:
    for command in KINDS:
        for name, declared in names_of(command).items():
            assert schema_of(declared) == schema_of(all_names()[name]), (command, name)


@pytest.mark.parametrize("name", all_names())
def test_each_option_takes_the_values_of_its_schema_and_no_others(
    name: str, tmp_path: Path
) -> None:
    path, taken = tmp_path / "baton.yaml", set()
    for value in VALUES:
        path.write_text(json.dumps({name: value}))
        try:
            settings_for(path, "serve")
            accepted = True
        except ConfigFileError:
            accepted = False
        assert accepted is WHOLE.is_valid({name: value}), (name, value)
        taken.add(accepted)
    assert False in taken


@settings(max_examples=25, deadline=None)
@given(value=st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.booleans()))
def test_the_check_of_a_value_is_that_of_json_schema(value: object) -> None:
    for declared in all_names().values():
        schema = schema_of(declared)
        assert is_valid(value, schema) is jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("document", "right"),
    [
        ({"serve": {"decode": 2}, "prefill-worker": {"max-running": 1}, "router": None}, True),
        ({"router": {"decode": 2}}, False),
        ({"serve": {"http-port": 65536}}, False),
        ({"serve": 3}, False),
        ({"decode-worker": {"decod": 1}}, False),
        ({"decod": 1}, False),
    ],
)
def test_sections_have_the_options_of_their_command(
    document: dict[str, object], right: bool, tmp_path: Path
) -> None:
    assert WHOLE.is_valid(document) is right
    path = tmp_path / "baton.yaml"
    path.write_text(json.dumps(document))
    if right:
        settings_for(path, "serve")
    else:
        with pytest.raises(ConfigFileError):
            settings_for(path, "serve")
