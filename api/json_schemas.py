"""JSON schemas of clients as grammars, with what is not enforced of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from baton.api.errors import refused
from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import SchemaError
from baton.text.json_schema.rewriter import RewrittenSchema, rewrite_schema

ANY_OBJECT = {"type": "object"}
_ANY_OBJECT_NAME = "$$ANY$$"
"""SGLang's name for the schema of any JSON object."""
_SHOWN = 3
_MAX_TEXT = 1 << 22
"""Characters of a schema that is sent as a text."""

SchemaJson = Mapping[str, Any] | str
"""A schema, or its text."""


@dataclass(frozen=True)
class JsonSchemas:
    """The reader of one request's schemas."""

    closed: bool = False  # objects have no members but those that their schema names
    ignored: dict[str, None] = field(default_factory=dict)
    """Names of what is not enforced of the schemas so far, for the reply's header."""

    def grammar(self, schema: SchemaJson, param: str, *, strict: bool = False) -> Grammar:
        """Return the grammar of JSON answers that follow `schema`.

        strict: whether all of it must be enforced. Raises `ApiError` that names `param`.
        """
        made = self.rewritten(schema, param, strict=strict)
        return Grammar(GrammarKind.JSON_SCHEMA, schema_text(made.whole(), param))

    def rewritten(
        self,
        schema: SchemaJson,
        param: str,
        *,
        strict: bool = False,
        name: str = "part",
        place: str = "schema",
        of: str = "the json_schema",
    ) -> RewrittenSchema:
        """Return a schema that a grammar can be made of.

        name: what names of its parts begin with; place: what names in the header begin with
        of: the schema's name in errors
        """
        try:
            made = rewrite_schema(_read(schema), name=name, closed=self.closed)
        except SchemaError as error:
            raise refused(param, f"{param}: {of} cannot be used: it {error}") from error
        if strict and made.unenforced:
            shown = ", ".join(
                f"{each.keyword} at {each.pointer}" for each in made.unenforced[:_SHOWN]
            )
            more = len(made.unenforced) - _SHOWN
            raise refused(
                param,
                f"{param}: strict is true, but {of} has what cannot be enforced: {shown}"
                + (f" and {more} more" if more > 0 else "")
                + "; leave it out, or set strict to false",
            )
        self.ignored.update(dict.fromkeys(f"{place}.{each.keyword}" for each in made.unenforced))
        return made


def schema_text(schema: Mapping[str, Any], param: str) -> str:
    """Return a schema as JSON. A character of any script counts as one. Raises `ApiError`."""
    return checked_text(json.dumps(schema, ensure_ascii=False), param)


def checked_text(text: str, param: str) -> str:
    """Return the text of a grammar. Raises `ApiError` if it has half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refused(
            param, f"{param}: the json_schema has half of a surrogate pair, which is no character"
        ) from error
    return text


def _read(schema: SchemaJson) -> dict[str, Any]:
    """Return a schema as an object. Raises SchemaError."""
    if schema == _ANY_OBJECT_NAME:
        return ANY_OBJECT
    if not isinstance(schema, str):
        return dict(schema)
    if len(schema) > _MAX_TEXT:
        raise SchemaError(f"has {len(schema)} characters; at most {_MAX_TEXT}")
    try:
        found = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"is no JSON object: {error}") from error
    if found is True:
        return {}
    if not isinstance(found, dict):
        raise SchemaError(f"is no JSON object: it is {schema[:80]}")
    return found
