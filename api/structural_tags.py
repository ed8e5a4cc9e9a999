"""Structural tags of vLLM, SGLang and XGrammar: free text in which some tags hold a schema.

Where the answer has written a trigger, it must go on with a tag that begins so, then with what the
tag holds and its end. Behind it, text is free again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.api.errors import refused, shorten
from baton.api.json_schemas import JsonSchemas, checked_text
from baton.core.errors import ApiError
from baton.core.grammar import Grammar, GrammarKind
from baton.text.grammar_rules import ANY_TEXT, json_rule, literal_rule

_TEXT = f"TEXT: {ANY_TEXT}"
_MAX_TAGS = 1000


@dataclass(frozen=True)
class _Tag:
    """A tag, in the words of llguidance's grammars."""

    begin: str
    content: str
    end: str


class StructuralTags:
    """The reader of one description of tags."""

    def __init__(self, param: str, schemas: JsonSchemas) -> None:
        """param: the field to name in errors"""
        self._param = param
        self._schemas = schemas

    def grammar(self, given: Mapping[str, Any] | str) -> Grammar:
        """Return the grammar of answers with the tags that `given`, or its text, describes.
        Raises `ApiError`."""
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError) as error:
                raise self._refused(f"it is no JSON: {error}") from error
        if not isinstance(given, Mapping):
            raise self._refused("expected an object")
        form = given.get("format")
        if isinstance(form, Mapping):
            return self._of_format(form)
        structures = self._list(given, "structures")
        tags = [
            _Tag(
                self._text(each, "begin"),
                self._json({} if each.get("schema") is None else each["schema"]),
                self._text(each, "end"),
            )
            for each in structures
        ]
        return self._triggered(tags, given, least="*", once=False)

    def _of_format(self, form: Mapping[str, Any]) -> Grammar:
        """Return the grammar of XGrammar's newer form."""
        kind = form.get("type")
        if kind == "triggered_tags":
            tags = [self._tag(each) for each in self._list(form, "tags")]
            least = "+" if form.get("at_least_one") else "*"
            return self._triggered(tags, form, least, once=bool(form.get("stop_after_first")))
        if kind == "tag":
            tag = self._tag(form)
            begin, end = literal_rule(tag.begin), literal_rule(tag.end)
            return _lark([f"start: {begin} held {end}", f"held: {tag.content}"])
        return _lark(["start: held", f"held: {self._content(form)}"])

    def _tag(self, given: Mapping[str, Any]) -> _Tag:
        content = given.get("content")
        if not isinstance(content, Mapping):
            raise self._refused("expected an object as the content of a tag")
        return _Tag(self._text(given, "begin"), self._content(content), self._text(given, "end"))

    def _content(self, form: Mapping[str, Any]) -> str:
        """Return what a rule says of a part of the answer."""
        match form.get("type"):
            case "json_schema":
                return self._json(form.get("json_schema"))
            case "const_string":
                return literal_rule(self._text(form, "value"))
        kinds = "triggered_tags, tag, json_schema or const_string"
        raise self._refused(f"format.type is {shorten(repr(form.get('type')))}; expected {kinds}")

    def _json(self, schema: object) -> str:
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        if not isinstance(schema, Mapping):
            raise self._refused("expected a schema, which is an object")
        made = self._schemas.rewritten(schema, self._param, of="the schema of a tag")
        return checked_text(json_rule(made.whole()), self._param)

    def _triggered(
        self, tags: Sequence[_Tag], given: Mapping[str, Any], least: str, *, once: bool
    ) -> Grammar:
        """Return the grammar of free text with tags in it.

        least: `+` for one tag at least, else `*`; once: the answer ends behind the first
        """
        triggers = given.get("triggers")
        if not isinstance(triggers, list) or not triggers or not all(map(_is_text, triggers)):
            raise self._refused("expected triggers, texts that tags begin with")
        if not 0 < len(tags) <= _MAX_TAGS or len(triggers) > _MAX_TAGS:
            raise self._refused(f"expected 1 to {_MAX_TAGS} tags")
        places = [self._trigger_of(tag, triggers) for tag in tags]
        used = sorted(set(places))
        options = " | ".join(f"part_{place}" for place in used)
        start = f"start: {options}" if once else f"start: ({options}){least} tail"
        if once and least == "*":
            start += " | tail"
        lines = [start, "tail: TEXT", _TEXT]
        for place in used:
            own = [number for number, found in enumerate(places) if found == place]
            rest = len(triggers[place])
            forms = [
                f"{literal_rule(tags[n].begin[rest:])} held_{n} {literal_rule(tags[n].end)}"
                for n in own
            ]
            lines.append(f"part_{place}: trigger_{place} ({' | '.join(forms)})")
            lines.append(f"trigger_{place}[lazy]: TEXT {literal_rule(triggers[place])}")
        lines += [f"held_{number}: {tag.content}" for number, tag in enumerate(tags)]
        return _lark(lines)

    def _trigger_of(self, tag: _Tag, triggers: Sequence[str]) -> int:
        """Return the place of the trigger that a tag begins with."""
        for place, trigger in enumerate(triggers):
            if tag.begin.startswith(trigger):
                return place
        raise self._refused(f"no trigger is the beginning of {shorten(repr(tag.begin))}")

    def _list(self, given: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        found = given.get(name)
        if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
            raise self._refused(f"expected {name}, a list of objects")
        return found

    def _text(self, given: Mapping[str, Any], name: str) -> str:
        found = given.get(name)
        if not isinstance(found, str):
            raise self._refused(f"expected a text as {name}")
        return found

    def _refused(self, why: str) -> ApiError:
        return refused(self._param, f"{self._param}: the structural tag cannot be used: {why}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _lark(lines: Sequence[str]) -> Grammar:
    return Grammar(GrammarKind.LARK, "\n".join(["%llguidance {}", *lines]))
