"""Arrays of a schema in the form that llguidance takes."""

from baton.text.json_schema.keywords import Json, Path, Schema
from baton.text.json_schema.notes import Notes, wrong
from baton.text.json_schema.object_rules import Rewrite
from baton.text.json_schema.scalars import add_count

_APPLIED = ("allOf", "anyOf", "oneOf", "$ref", "if", "contains")


def add_array_rules(
    given: Schema, made: Schema, path: Path, notes: Notes, rewrite: Rewrite, *, merged: bool
) -> None:
    """Add what a schema says of arrays."""
    items, first, rest = given.get("items"), given.get("prefixItems"), "items"
    listed = "prefixItems"
    if isinstance(items, list):  # before draft 2020
        first, items, listed, rest = items, given.get("additionalItems"), "items", "additionalItems"
    if items is None:
        items, rest = _unevaluated(given, path, notes), "unevaluatedItems"
    if first is not None:
        if not isinstance(first, list):
            raise wrong(path, listed, "list of schemas")
        made["prefixItems"] = [
            rewrite(each, ((path, listed), str(number)), merged=merged)
            for number, each in enumerate(first)
        ]
    if items is not None:
        made["items"] = rewrite(items, (path, rest), merged=merged)
    for keyword in ("minItems", "maxItems"):
        add_count(given, made, keyword, path)
    most = made.get("maxItems")
    if given.get("uniqueItems") is True and not (isinstance(most, int) and most <= 1):
        notes.leave_out("uniqueItems", path)
    if "contains" in given:
        _add_contains(given, made, path, notes)


def _unevaluated(given: Schema, path: Path, notes: Notes) -> Json:
    rule = given.get("unevaluatedItems")
    if rule is None or rule is True:
        return None
    if any(name in given for name in _APPLIED):
        notes.leave_out("unevaluatedItems", path)
        return None
    return rule


def _add_contains(given: Schema, made: Schema, path: Path, notes: Notes) -> None:
    """Add the rule for some items where it is one for their number."""
    counts: Schema = {}
    for keyword in ("minContains", "maxContains"):
        add_count(given, counts, keyword, path)
    least = counts.get("minContains", 0 if "minContains" in given else 1)
    most = counts.get("maxContains")
    if not least and most is None:
        return
    if given["contains"] is not True and given["contains"] != {}:
        notes.leave_out("contains", path)
        return
    for keyword, count, choose in (("minItems", least, max), ("maxItems", most, min)):
        other = made.get(keyword)
        if isinstance(count, int) and count:
            made[keyword] = choose(count, other) if isinstance(other, int) else count
