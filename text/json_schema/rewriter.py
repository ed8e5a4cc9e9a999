"""A client's JSON schema in the form that llguidance takes, and what of it that does not enforce.

llguidance refuses a schema for one keyword that it does not know. Here, such a keyword is written
with others that say the same, or else left out and named. A part that references lead to becomes an
entry of `$defs`, so that the result holds no names and pointers of the client's document.
"""

from dataclasses import dataclass

from baton.text.errors import SchemaError
from baton.text.json_schema.array_rules import add_array_rules
from baton.text.json_schema.disjoint import Disjointness
from baton.text.json_schema.effort import Effort
from baton.text.json_schema.keywords import Json, Path, Schema, pointer
from baton.text.json_schema.notes import Notes, Unenforced, wrong
from baton.text.json_schema.object_rules import ObjectRules
from baton.text.json_schema.references import References
from baton.text.json_schema.scalars import (
    TYPES,
    add_number_rules,
    add_text_rules,
    types_of,
)

MAX_DEPTH = 100
"""Brackets in brackets: llguidance reads 127."""
MAX_VALUES = 50_000
"""Values in a schema: a text of 64 KiB has at most half as many members and items."""
_BESIDE = frozenset({
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "required",
    "minProperties", "maxProperties", "propertyNames", "dependentRequired",
})  # fmt: skip
"""Keywords of objects: a schema beside them speaks of the same objects."""
_APPLYING = (
    "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "not",
    "dependentSchemas", "dependencies",
)  # fmt: skip


@dataclass(frozen=True)
class RewrittenSchema:
    """A schema that llguidance takes."""

    root: Schema  # without `$defs`
    parts: Schema  # those that references lead to, by their names in `$defs`
    unenforced: tuple[Unenforced, ...]  # what of the client's schema it does not say

    def whole(self) -> Schema:
        """Return the schema with its parts."""
        return self.root | {"$defs": self.parts} if self.parts else self.root


def rewrite_schema(schema: Schema, *, name: str = "part", closed: bool = False) -> RewrittenSchema:
    """Rewrite a schema. Raises SchemaError for one that is none, or too large.

    name: what names of its parts begin with
    closed: an object whose schema names members has no others, unless the schema says so
    """
    _check_size(schema)
    return _Rewriting(schema, name, closed=closed).result()


def _check_size(schema: Schema) -> None:
    level: list[Json] = [schema]
    depth = count = 0
    while level:
        depth, count = depth + 1, count + len(level)
        if depth > MAX_DEPTH:
            raise SchemaError(f"has brackets in brackets, more than {MAX_DEPTH} deep")
        if count > MAX_VALUES:
            raise SchemaError(f"has more than {MAX_VALUES} values")
        below: list[Json] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        level = below


class _Rewriting:
    """The rewriting of one schema."""

    def __init__(self, root: Schema, name: str, *, closed: bool) -> None:
        self._root = root
        self._name = name
        self._closed = closed
        self._references = References(root)
        self._effort = Effort()
        self._disjointness = Disjointness(self._references, self._effort)
        self._notes = Notes()
        self._patterns: set[str] = set()  # see ObjectRules
        self._names: dict[tuple[int, bool], str] = {}  # of parts; see `_part`
        self._waiting: list[tuple[Schema, bool, str]] = []

    def result(self) -> RewrittenSchema:
        root = self._rewrite(self._root, None, merged=False)
        parts: Schema = {}
        while self._waiting:
            schema, merged, name = self._waiting.pop()
            parts[name] = self._content(schema, self._references.path(schema), merged)
        assert isinstance(root, dict)
        return RewrittenSchema(root, parts, self._notes.found)

    def _rewrite(self, value: Json, path: Path, *, merged: bool) -> Json:
        """Return a schema in its new form.

        merged: an answer must follow other schemas beside it, so that none of them alone says
        which members an object has
        """
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise SchemaError(f"has no schema at {pointer(path)}: expected an object or a boolean")
        if self._references.targeted(value):
            return self._part(value, merged)
        return self._content(value, path, merged)

    def _part(self, schema: Schema, merged: bool) -> Schema:
        """Return a reference to a part, which is rewritten once for each value of `merged`."""
        merged = merged and self._closed
        name = self._names.get((id(schema), merged))
        if name is None:
            name = f"{self._name}{len(self._names)}"
            self._names[id(schema), merged] = name
            self._waiting.append((schema, merged, name))
        return {"$ref": f"#/$defs/{name}"}

    def _content(self, given: Schema, path: Path, merged: bool) -> Schema:
        made: Schema = {}
        types = types_of(given, path, self._notes)
        if types is not None:
            made["type"] = types[0] if len(types) == 1 else [*types]
        may = set(TYPES) if types is None else set(types)
        self._add_values(given, made, path)
        if "string" in may:
            add_text_rules(given, made, path, self._notes)
        if may & {"integer", "number"}:
            integers = "number" not in may
            add_number_rules(given, made, path, self._notes, integers=integers)
        if "array" in may:
            add_array_rules(given, made, path, self._notes, self._rewrite, merged=merged)
        self._add_reference(given, made, path, merged=merged or self._applies_more(given, "$ref"))
        if "object" in may:
            rules = ObjectRules(
                given,
                made,
                path,
                self._notes,
                self._references,
                self._rewrite,
                merged=merged,
                patterns=self._patterns,
                effort=self._effort,
            )
            rules.add(closed=self._closed)
        self._add_alternatives(given, made, path, merged)
        self._add_conditions(given, path)
        return self._without_refused(given, made, path, may)

    def _add_values(self, given: Schema, made: Schema, path: Path) -> None:
        values = given.get("enum")
        if values is not None:
            if not isinstance(values, list):
                raise wrong(path, "enum", "list")
            if values:
                made["enum"] = values
            else:
                self._notes.leave_out("enum", path)
        if "const" in given:
            made["const"] = given["const"]

    def _add_reference(self, given: Schema, made: Schema, path: Path, *, merged: bool) -> None:
        keywords = [name for name in _APPLYING[:3] if isinstance(given.get(name), str)]
        target = self._references.target(given)
        if target is None or len(keywords) > 1 or self._references.overridden(given):
            for keyword in keywords[target is not None and len(keywords) > 1 :]:
                self._notes.leave_out(keyword, path)
        if isinstance(target, dict):
            made.update(self._part(target, merged))
        elif target is not None:
            made["allOf"] = [target]

    def _add_alternatives(self, given: Schema, made: Schema, path: Path, merged: bool) -> None:
        for keyword in ("allOf", "anyOf", "oneOf"):
            options = given.get(keyword)
            if options is None:
                continue
            if not isinstance(options, list):
                raise wrong(path, keyword, "list of schemas")
            if not options:
                continue
            together = merged or self._applies_more(given, keyword)
            together = together or (keyword == "allOf" and len(options) > 1)
            found = [
                self._rewrite(each, ((path, keyword), str(number)), merged=together)
                for number, each in enumerate(options)
            ]
            if keyword == "oneOf" and len(options) > 1:
                if not self._disjointness.all_apart(options, given):
                    self._notes.leave_out("oneOf", path)
            if keyword == "oneOf" and "anyOf" in made:
                keyword, found = "allOf", [{"anyOf": found}]
            other = made.get("allOf") if keyword == "allOf" else None
            name = "anyOf" if keyword == "oneOf" else keyword
            made[name] = [*(other if isinstance(other, list) else ()), *found]

    def _add_conditions(self, given: Schema, path: Path) -> None:
        if "if" in given and ("then" in given or "else" in given):
            self._notes.leave_out("if", path)

    def _without_refused(self, given: Schema, made: Schema, path: Path, may: set[str]) -> Schema:
        """Return what is left where `not` refuses types, which others then remain of."""
        refused = given.get("not")
        if refused is None or refused is False:
            return made
        if refused is True or refused == {}:
            return {"allOf": [False]}
        named = refused.get("type") if isinstance(refused, dict) else None
        names = (
            {each for each in named if isinstance(each, str)}
            if isinstance(named, list)
            else {named}
        )
        alone = isinstance(refused, dict) and refused.keys() <= {"type", "title", "description"}
        if not alone or not names <= TYPES or ("integer" in names and "number" in may - names):
            self._notes.leave_out("not", path)
            return made
        left = may - names - ({"integer"} if "number" in names else set())
        made["type"] = [*sorted(left)]
        return made

    def _applies_more(self, given: Schema, keyword: str) -> bool:
        """Return True if a schema has rules for objects besides those that a keyword applies."""
        return any(name in given for name in _APPLYING if name != keyword) or bool(
            _BESIDE & given.keys()
        )
