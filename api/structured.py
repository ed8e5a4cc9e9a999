"""Constraints on an answer's form, as clients ask for them."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.grammar import Grammar, GrammarKind

_ANY_OBJECT = {"type": "object"}


class JsonSchema(BaseModel):
    """OpenAI's wrapper of a schema. The schema is enforced with `strict` or without it."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    name: str | None = None
    content: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    type: str
    json_schema: JsonSchema | None = None

    def grammar(self) -> Grammar | None:
        """Return the grammar of the format. Raises `ApiError`."""
        match self.type:
            case "text":
                return None
            case "json_object":
                return json_grammar(_ANY_OBJECT)
            case "json_schema":
                if self.json_schema is None:
                    raise _refused("response_format.json_schema", "expected json_schema.schema")
                return json_grammar(self.json_schema.content)
        raise _refused(
            "response_format",
            f"response_format.type is {self.type!r}; expected text, json_object or json_schema",
        )


def json_grammar(schema: Mapping[str, Any]) -> Grammar:
    """Return the grammar of JSON answers that follow `schema`."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def one_grammar(given: Mapping[str, Grammar | None]) -> tuple[Grammar | None, str]:
    """Return the grammar that was given and its field. Raises `ApiError` if several were given."""
    found = [(grammar, name) for name, grammar in given.items() if grammar is not None]
    if len(found) > 1:
        names = " and ".join(name for _, name in found)
        raise _refused(found[1][1], f"{names} are given; expected one of them")
    return found[0] if found else (None, "")


def _refused(param: str, message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message, param=param)
