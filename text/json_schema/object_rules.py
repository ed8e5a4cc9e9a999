"""Objects of a schema in the form that llguidance takes: names, counts and further members."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from baton.text.grammar_limits import check_regex
from baton.text.json_schema.ecma_pattern import literal, translated
from baton.text.json_schema.effort import Effort
from baton.text.json_schema.keywords import Json, Path, Schema, schemas_of, texts
from baton.text.json_schema.notes import Notes, checked, wrong
from baton.text.json_schema.references import References
from baton.text.json_schema.scalars import add_count

_MAX_DEPENDENT = 4
"""Dependent properties in one schema: each one doubles the forms that an object has."""
_NAME_RULES = frozenset({"type", "enum", "const", "pattern", "minLength", "maxLength"})
_REMARKS = frozenset({
    "title", "description", "default", "examples", "$comment", "$schema", "deprecated",
})  # fmt: skip
_CONJUNCTIONS = ("allOf", "$ref")
_CONDITIONS = ("anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies", "not")
_CHAIN = 16
"""References that lead to references, for a rule of names."""


class Rewrite(Protocol):
    """Rewrites a schema that stands in the one at hand."""

    def __call__(self, value: Json, path: Path, *, merged: bool) -> Json: ...


class ObjectRules:
    """The rules for objects in one schema.

    given: the client's schema; made: the one that is being made of it
    merged: whether the object must follow other schemas too
    patterns: those of names in all objects that follow several schemas
    """

    def __init__(
        self,
        given: Schema,
        made: Schema,
        path: Path,
        notes: Notes,
        references: References,
        rewrite: Rewrite,
        *,
        merged: bool,
        patterns: set[str],
        effort: Effort,
    ) -> None:
        self._effort = effort
        self._patterns = patterns
        self._given = given
        self._made = made
        self._path = path
        self._notes = notes
        self._references = references
        self._rewrite = rewrite
        self._merged = merged

    def add(self, *, closed: bool) -> None:
        """Add all rules. closed: an object has no members but those that the schema names."""
        self._add_members()
        self._add_rest(closed=closed and not self._merged)
        self._add_names()
        self._add_dependents()
        self._add_counts()

    def _add_members(self) -> None:
        required = list(dict.fromkeys(texts(self._given.get("required"))))
        if required:
            self._made["required"] = [*required]
        for keyword in ("properties", "patternProperties"):
            place: Path = (self._path, keyword)
            given = self._given.get(keyword)
            if given is None:
                continue
            if not isinstance(given, dict):
                raise wrong(self._path, keyword, "object of schemas")
            held: Schema = {}
            for name, each in given.items():
                key = name if keyword == "properties" else self._pattern(name, held)
                if key is not None:
                    held[key] = self._rewrite(each, (place, name), merged=self._merged)
            self._made[keyword] = held
        rest = self._given.get("additionalProperties")
        if rest is not None:
            path = (self._path, "additionalProperties")
            self._made["additionalProperties"] = self._rewrite(rest, path, merged=self._merged)

    def _pattern(self, name: str, held: Collection[str]) -> str | None:
        """Return a pattern of names that no other one's names match; None: it is left out."""
        found = translated(name)
        if found is None or not self._apart(found, held):
            self._notes.leave_out("patternProperties", self._path)
            return None
        return self._usable(found, "patternProperties")

    def _usable(self, pattern: str, keyword: str) -> str | None:
        """Return a pattern of names unless the object has others that may match the same names."""
        checked(self._path, keyword, lambda: check_regex(pattern, "the pattern"))
        if self._merged or self._applied_keywords():
            others = self._patterns - {pattern}
            if not self._apart(pattern, others):
                self._notes.leave_out(keyword, self._path)
                return None
            self._patterns.add(pattern)
        return pattern

    def _apart(self, pattern: str, others: Collection[str]) -> bool:
        return self._effort.take(len(others)) and all(_apart(pattern, each) for each in others)

    def _applied_keywords(self) -> list[str]:
        return [name for name in (*_CONJUNCTIONS, *_CONDITIONS) if name in self._given]

    def _add_rest(self, *, closed: bool) -> None:
        """Add what members have that no keyword names."""
        unevaluated = self._given.get("unevaluatedProperties")
        if unevaluated is True or "additionalProperties" in self._made:
            return
        applied = self._applied_keywords()
        if unevaluated is not None and not applied:
            path = (self._path, "unevaluatedProperties")
            self._made["additionalProperties"] = self._rewrite(
                unevaluated, path, merged=self._merged
            )
        elif unevaluated is False:
            if not self._close(conditions=False):
                self._notes.leave_out("unevaluatedProperties", self._path)
        elif unevaluated is not None:
            self._notes.leave_out("unevaluatedProperties", self._path)
        elif closed and ("properties" in self._made or "allOf" in applied):
            self._close(conditions=True)

    def _close(self, *, conditions: bool) -> bool:
        """Refuse further members. Return False if the names of all others are not known.

        conditions: names that only some answers may have count too
        """
        names = self._names(conditions)
        if names is None or not (names or "properties" in self._made):
            return False
        held = dict(schemas_of(self._made.get("properties")))
        others = [*names, *texts(self._made.get("required"))]
        self._made["properties"] = held | {name: True for name in others if name not in held}
        self._made["additionalProperties"] = False
        return True

    def _names(self, conditions: bool) -> dict[str, None] | None:
        """Return the names of members that the schema, and those that it applies to the same
        object, have rules for; None if there are patterns of names among them."""
        found: dict[str, None] = {}
        seen: set[int] = set()
        waiting = [self._given]
        for schema in waiting:  # it grows
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            if schema is not self._given and (
                "patternProperties" in schema
                or schema.get("additionalProperties", False) is not False
                or schema.get("unevaluatedProperties", False) is not False
            ):
                return None
            names = schemas_of(schema.get("properties"))
            if not self._effort.take(1 + len(names)):
                return None
            found |= dict.fromkeys(names)
            for part in self._applied(schema):
                if part is not None:
                    waiting.append(part)
                elif not conditions:
                    return None
        return found

    def _applied(self, schema: Schema) -> Iterable[Schema | None]:
        """Yield the schemas that a schema applies to the same object; None before one that it
        applies to some objects only."""
        target = self._references.target(schema)
        if isinstance(target, dict):
            yield target
        for keyword in ("allOf", *_CONDITIONS):
            held = schema.get(keyword)
            if held is None:
                continue
            if keyword != "allOf":
                yield None
            if keyword in ("dependentSchemas", "dependencies"):
                held = [*schemas_of(held).values()]
            for each in held if isinstance(held, list) else [held]:
                if isinstance(each, dict) and keyword != "not":
                    yield each

    def _add_names(self) -> None:
        """Add the rule for names, as patterns of members."""
        rule = self._given.get("propertyNames")
        for _ in range(_CHAIN):
            if not isinstance(rule, dict) or rule.keys() - _REMARKS != {"$ref"}:
                break
            rule = self._references.target(rule) or rule
        if rule is None or rule is True:
            return
        kinds = rule.keys() - _REMARKS if isinstance(rule, dict) else set()
        if isinstance(rule, dict) and kinds <= {"type"} and rule.get("type", "string") == "string":
            return
        pattern = self._names_pattern(rule) if isinstance(rule, dict) else None
        if pattern is None or "patternProperties" in self._made:
            self._notes.leave_out("propertyNames", self._path)
            return
        match, fits = pattern
        own = schemas_of(self._made.get("properties"))
        if fits is None and own:
            self._notes.leave_out("propertyNames", self._path)
            return
        if fits is not None:
            self._made["properties"] = {
                name: each if fits(name) else False for name, each in own.items()
            }
        rest = self._made.get("additionalProperties", True)
        if rest is not False and self._usable(match, "propertyNames") is not None:
            self._made["patternProperties"] = {match: rest}
            self._made["additionalProperties"] = False

    def _names_pattern(self, rule: Schema) -> tuple[str, Callable[[str], bool] | None] | None:
        """Return a pattern of the names that a rule allows, and a test of a name if there is one.
        None for a rule that a pattern does not say."""
        kinds = rule.keys() - _REMARKS - {"type"}
        if not kinds <= _NAME_RULES or rule.get("type", "string") != "string":
            return None
        if kinds == {"enum"} or kinds == {"const"}:
            listed = texts(rule["enum"] if "enum" in kinds else [rule["const"]])
            if not listed or not self._effort.take(len(listed)):
                return None
            named = set(listed)
            options = "|".join("".join(map(literal, map(ord, name))) for name in sorted(named))
            return f"^(?:{options})$", lambda name: name in named
        if kinds == {"pattern"}:
            pattern = rule["pattern"]
            match = translated(pattern) if isinstance(pattern, str) else None
            return None if match is None else (match, None)
        if kinds <= {"minLength", "maxLength"}:
            sizes: Schema = {}
            for keyword in kinds:
                add_count(rule, sizes, keyword, (self._path, "propertyNames"))
            least, most = sizes.get("minLength", 0), sizes.get("maxLength")
            assert isinstance(least, int) and isinstance(most, int | None)
            end = "" if most is None else most
            return (
                f"^[\\s\\S]{{{least},{end}}}$",
                lambda name: least <= len(name) and (most is None or len(name) <= most),
            )
        return None

    def _add_dependents(self) -> None:
        """Add what members ask for that other members need: either the one is absent, or the others
        are there."""
        found: list[tuple[str, str, Json]] = []
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            held = schemas_of(self._given.get(keyword))
            found += [(keyword, name, each) for name, each in held.items() if each != []]
        if len(found) > _MAX_DEPENDENT:
            for keyword in dict.fromkeys(keyword for keyword, _, _ in found):
                self._notes.leave_out(keyword, self._path)
            return
        for keyword, name, each in found:
            present: Schema = {"required": [name, *texts(each)]}
            if isinstance(each, dict | bool):
                path = ((self._path, keyword), name)
                present = {"allOf": [present, self._rewrite(each, path, merged=True)]}
            absent: Schema = {"properties": {name: False}}
            more = self._made.setdefault("allOf", [])
            assert isinstance(more, list)
            more.append({"anyOf": [absent, present]})

    def _add_counts(self) -> None:
        """Add the least and the most members, where llguidance can count them."""
        counts: Schema = {}
        for keyword in ("minProperties", "maxProperties"):
            add_count(self._given, counts, keyword, self._path)
        least, most = counts.get("minProperties", 0), counts.get("maxProperties")
        assert isinstance(least, int) and isinstance(most, int | None)
        required = len(texts(self._made.get("required")))
        names = schemas_of(self._made.get("properties"))
        closed = self._made.get("additionalProperties") is False
        closed = closed and not self._made.get("patternProperties")
        if least <= required:
            counts.pop("minProperties", None)
            least = required
        if closed and most is not None and most >= len(names):
            counts.pop("maxProperties", None)
            most = None
        if not counts:
            return
        optional = names.keys() - set(texts(self._made.get("required")))
        alone = not (self._merged or self._applied_keywords() or "dependentRequired" in self._given)
        one_more = least <= required + 1 and (most is None or most == required + 1)
        if alone and (not optional or (closed and one_more)):
            self._made.update(counts)
            return
        for keyword in counts:
            self._notes.leave_out(keyword, self._path)


def _apart(one: str, other: str) -> bool:
    """Return True if no name matches both patterns, by the letters that they begin with."""
    if not (one.startswith("^") and other.startswith("^")) or "|" in one + other:
        return False
    a, b = _beginning(one), _beginning(other)
    return not (a.startswith(b) or b.startswith(a))


def _beginning(pattern: str) -> str:
    """Return the letters that each text begins with."""
    found = ""
    for at, char in enumerate(pattern[1:], 1):
        if not (char.isalnum() or char in "_ ") or pattern[at + 1 : at + 2] in tuple("*+?{"):
            break
        found += char
    return found
