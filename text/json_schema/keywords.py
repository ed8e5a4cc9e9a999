"""The keywords of JSON Schema whose values are schemas, and a walk over them.

Only these are followed: data under `enum`, `const`, `default` and `examples` is no schema, and a
property that is named like a keyword is none.
"""

from collections.abc import Iterator, Mapping
from typing import TypeGuard

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Schema = dict[str, Json]
Path = tuple["Path | None", str] | None
"""The way to a value from the root: the way to what holds it, and its name there. None: the root.
Linked, so that a long name costs nothing until the path is shown."""

MAPS = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
)  # fmt: skip
"""Their values are objects whose members are schemas."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLE = (
    "items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains",
    "propertyNames", "unevaluatedProperties", "unevaluatedItems", "contentSchema",
)  # fmt: skip
_SHOWN = 200


def is_schema(value: Json) -> TypeGuard[Schema]:
    """Return True for a schema with keywords; one that is a boolean has none."""
    return isinstance(value, dict)


def subschemas(schema: Schema, path: Path) -> Iterator[tuple[Schema, Path]]:
    """Yield the schemas that stand directly in a schema, with their paths."""
    for name in MAPS:
        held = schema.get(name)
        if isinstance(held, dict):
            for key, each in held.items():
                if isinstance(each, dict):
                    yield each, ((path, name), key)
    for name in LISTS:
        listed = schema.get(name)
        if isinstance(listed, list):
            for number, each in enumerate(listed):
                if isinstance(each, dict):
                    yield each, ((path, name), str(number))
    for name in SINGLE:
        single = schema.get(name)
        if isinstance(single, dict):
            yield single, (path, name)


def pointer(path: Path) -> str:
    """Return a path as a JSON pointer in a fragment, cut in its middle if it is long."""
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(name[:_SHOWN].replace("~", "~0").replace("/", "~1"))
    shown = "/".join(["#", *reversed(names)])
    if len(shown) > _SHOWN:
        shown = f"{shown[: _SHOWN // 2]}…{shown[-_SHOWN // 2 :]}"
    return shown


def texts(value: Json) -> list[str]:
    """Return the texts of a list; () for anything else."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def schemas_of(value: Json) -> Mapping[str, Json]:
    """Return a map of schemas; an empty one for anything else."""
    return value if isinstance(value, dict) else {}
