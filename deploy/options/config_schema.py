"""The JSON schema of a file of settings, made of the options' declarations."""

from baton.core.options import Declared
from baton.deploy.options.click_options import shown_default
from baton.deploy.options.config_file import KINDS, SECTIONS, all_names, names_of
from baton.deploy.options.value_schema import Schema, schema_of


def config_schema() -> Schema:
    """Return the schema of a whole file."""
    sections: Schema = {name: _section(name) for name in SECTIONS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of Baton: baton.yaml",
        "type": "object",
        "properties": {name: _ref(_place_of(name)) for name in all_names()} | sections,
        "additionalProperties": False,
        "$defs": {
            command: {
                "type": "object",
                "properties": {n: _property(each) for n, each in names_of(command).items()},
                "additionalProperties": False,
            }
            for command in KINDS
        },
    }


def _ref(place: str) -> Schema:
    return {"$ref": place}


def _place_of(name: str) -> str:
    """Return where an option is described, that of the first command that has it."""
    command = next(each for each in KINDS if name in names_of(each))
    return f"#/$defs/{command}/properties/{name}"


def _section(name: str) -> Schema:
    command = SECTIONS[name]
    role = "" if name == command else f" as {name.removesuffix('-worker')} worker"
    return {
        "description": f"For `baton {command}`{role} alone.",
        "anyOf": [_ref(f"#/$defs/{command}"), {"type": "null"}],
    }


def _property(declared: Declared) -> Schema:
    found: Schema = {"description": declared.option.help} | schema_of(declared)
    default = shown_default(declared)
    if isinstance(default, str | int | float):
        found["default"] = default
    return found
