"""Constraints on an answer's form, as clients ask for them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from baton.api.body import Body, ListOf
from baton.api.errors import refused
from baton.api.fields.field_table import FieldPlace, works
from baton.api.json_schemas import ANY_OBJECT, JsonSchemas, SchemaJson
from baton.api.structural_tags import StructuralTags
from baton.core.grammar import Grammar, GrammarKind


class JsonSchema(Body):
    """OpenAI's wrapper of a schema. What of it can be enforced is, with `strict` or without it."""

    place: ClassVar[FieldPlace | None] = FieldPlace.JSON_SCHEMA

    content: Annotated[dict[str, Any], works("a grammar")] = Field(alias="schema")
    strict: Annotated[bool | None, works("what cannot be enforced is refused")] = (
        None  # True: refused if a part of it cannot be enforced
    )


class ResponseFormat(Body):
    """OpenAI's way to ask for a form."""

    place: ClassVar[FieldPlace | None] = FieldPlace.RESPONSE_FORMAT

    type: Annotated[str, works("a grammar")]
    json_schema: Annotated[JsonSchema | None, works("a grammar")] = None
    content: Annotated[dict[str, Any] | None, works("a grammar")] = Field(None, alias="schema")
    """The schema of json_object, and of json_schema as llama.cpp has it."""
    structures: Annotated[ListOf[dict[str, Any]] | None, works("a grammar")] = (
        None  # of structural_tag
    )
    triggers: Annotated[ListOf[str] | None, works("a grammar")] = None
    format: Annotated[dict[str, Any] | None, works("a grammar")] = None

    def grammar(self, schemas: JsonSchemas) -> Grammar | None:
        """Return the grammar of the format. Raises `ApiError`."""
        match self.type:
            case "text":
                return None
            case "json_object":
                schema = ANY_OBJECT if self.content is None else {"type": "object"} | self.content
                return schemas.grammar(schema, "response_format")
            case "json_schema":
                schema_of = self.json_schema
                content = self.content if schema_of is None else schema_of.content
                if content is None:
                    raise refused("response_format.json_schema", "expected json_schema.schema")
                strict = schema_of is not None and schema_of.strict is True
                return schemas.grammar(content, "response_format", strict=strict)
            case "structural_tag":
                tags = {
                    "structures": self.structures,
                    "triggers": self.triggers,
                    "format": self.format,
                }
                return StructuralTags("response_format", schemas).grammar(tags)
        raise refused(
            "response_format",
            f"response_format.type is {self.type!r}; expected text, json_object, json_schema or "
            "structural_tag",
        )


class StructuredOutputs(Body):
    """vLLM's way to ask for a form."""

    place: ClassVar[FieldPlace | None] = FieldPlace.STRUCTURED

    schema_: Annotated[dict[str, Any] | str | None, works("a grammar")] = Field(None, alias="json")
    regex: Annotated[str | None, works("a grammar")] = None
    choice: Annotated[ListOf[str] | None, works("a grammar")] = None
    grammar: Annotated[str | None, works("a grammar")] = None
    json_object: Annotated[bool | None, works("a grammar")] = None
    disable_additional_properties: Annotated[bool | None, works("true: as --closed-objects")] = None
    structural_tag: Annotated[dict[str, Any] | str | None, works("a grammar")] = None

    def grammars(self, schemas: JsonSchemas) -> dict[str, Grammar | None]:
        """Return the grammar of each field that was given. Raises `ApiError`."""
        if self.disable_additional_properties:
            schemas = replace(schemas, closed=True)
        found = guided_grammars(
            "structured_outputs.", schemas, self.schema_, self.regex, self.choice, self.grammar
        )
        name = "structured_outputs.json_object"
        found[name] = schemas.grammar(ANY_OBJECT, name) if self.json_object else None
        name = "structured_outputs.structural_tag"
        return found | {name: tag_grammar(self.structural_tag, name, schemas)}


def guided_grammars(
    prefix: str,
    schemas: JsonSchemas,
    schema: SchemaJson | None,
    regex: str | None,
    choice: Sequence[str] | None,
    grammar: str | None,
) -> dict[str, Grammar | None]:
    """Return the grammars of vLLM's four kinds of constraint, by the field's name after `prefix`.

    Raises `ApiError`.
    """
    return {
        f"{prefix}json": None if schema is None else schemas.grammar(schema, f"{prefix}json"),
        f"{prefix}regex": grammar_of(GrammarKind.REGEX, regex),
        f"{prefix}choice": None if choice is None else _choice_grammar(choice, f"{prefix}choice"),
        f"{prefix}grammar": None if grammar is None else Grammar(_dialect(grammar), grammar),
    }


def tag_grammar(tags: SchemaJson | None, param: str, schemas: JsonSchemas) -> Grammar | None:
    """Return the grammar of structural tags that a field gave, if it did. Raises `ApiError`."""
    return StructuralTags(param, schemas).grammar(tags) if tags else None


def grammar_of(kind: GrammarKind, text: str | None) -> Grammar | None:
    """Return the grammar that a field gave, if it did."""
    return None if text is None else Grammar(kind, text)


def one_grammar(given: Mapping[str, Grammar | None]) -> tuple[Grammar | None, str]:
    """Return the grammar that was given and its field. Raises `ApiError` if several were given."""
    found = [(grammar, name) for name, grammar in given.items() if grammar is not None]
    if len(found) > 1:
        names = " and ".join(name for _, name in found)
        raise refused(found[1][1], f"{names} are given; expected one of them")
    return found[0] if found else (None, "")


def _choice_grammar(choice: Sequence[str], param: str) -> Grammar:
    """Return the grammar of answers that are one of these texts."""
    if not choice or not all(choice):
        raise refused(param, f"{param} is {list(choice)!r:.80}; expected one or more texts")
    texts = (json.dumps(each, ensure_ascii=False) for each in choice)
    return Grammar(GrammarKind.LARK, "start: " + " | ".join(texts))


def _dialect(grammar: str) -> GrammarKind:
    """Return the language of a grammar, which vLLM's clients do not say: only EBNF has `::=`."""
    return GrammarKind.EBNF if "::=" in grammar else GrammarKind.LARK
