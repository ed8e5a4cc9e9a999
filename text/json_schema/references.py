"""References between the parts of a schema: `$id`, `$anchor` and JSON pointers, each to its target.

The result names no place in the client's document, so that a schema may move into another one.
"""

from urllib.parse import unquote, urldefrag, urljoin

from baton.text.errors import SchemaError
from baton.text.json_schema.keywords import Json, Path, Schema, pointer, subschemas

MAX_SCHEMAS = 8000
"""Schemas in a schema; rewriting one takes about 10 us."""
MAX_URI_CHARS = 1024
_ANCHORS = ("$anchor", "$dynamicAnchor")


class References:
    """The targets of all references of one document."""

    def __init__(self, root: Schema) -> None:
        """Raises SchemaError for a document that is too large."""
        self._root = root
        self._paths: dict[int, Path] = {}  # of each schema, by its id()
        self._resources: dict[str, Schema] = {"": root}
        self._anchors: dict[tuple[str, str], Schema] = {}
        self._targets: dict[int, Json] = {}  # by the id() of the schema with the `$ref`
        self._broken: set[int] = set()  # schemas whose reference leads nowhere
        self._referring: list[tuple[Schema, str]] = []
        self._targeted: set[int] = set()
        self._dynamic: dict[str, int] = {}  # schemas with each `$dynamicAnchor`
        self._explore(root, None, "")
        at = 0
        while at < len(self._referring):  # a target may be where no keyword has a schema
            schema, base = self._referring[at]
            self._resolve(schema, base)
            at += 1

    def target(self, schema: Schema) -> Json:
        """Return what a schema's reference leads to; None if it has none, or to another
        document. Raises SchemaError for a reference to a place that the document lacks."""
        if id(schema) in self._broken:
            where = pointer(self._paths[id(schema)])
            raise SchemaError(
                f"refers at {where} to {_reference_of(schema):.200}, where there is no schema"
            )
        return self._targets.get(id(schema))

    def targeted(self, schema: Schema) -> bool:
        """Return True if a reference leads to this schema."""
        return id(schema) in self._targeted

    def overridden(self, schema: Schema) -> bool:
        """Return True if a dynamic reference may lead to another schema than `target`."""
        name = schema.get("$dynamicRef")
        return isinstance(name, str) and self._dynamic.get(name.rpartition("#")[2], 0) > 1

    def path(self, schema: Schema) -> Path:
        """Return the path of a schema of this document."""
        return self._paths.get(id(schema))

    def _explore(self, schema: Schema, path: Path, base: str) -> None:
        stack = [(schema, path, base)]
        while stack:
            schema, path, base = stack.pop()
            if id(schema) in self._paths:
                continue
            if len(self._paths) >= MAX_SCHEMAS:
                raise SchemaError(f"has more than {MAX_SCHEMAS} schemas in it")
            self._paths[id(schema)] = path
            base = self._named(schema, base)
            if _reference_of(schema) is not None:
                self._referring.append((schema, base))
            stack += [(each, way, base) for each, way in subschemas(schema, path)]

    def _named(self, schema: Schema, base: str) -> str:
        """Keep the names that a schema gives itself. Return the base of the references in it."""
        own = schema.get("$id", schema.get("id"))
        if isinstance(own, str):
            uri, fragment = urldefrag(_joined(base, own))
            if fragment:  # an anchor, in drafts 4 to 7
                self._anchors.setdefault((uri, fragment), schema)
            else:
                base = uri
                self._resources.setdefault(uri, schema)
        for name in _ANCHORS:
            anchor = schema.get(name)
            if isinstance(anchor, str):
                self._anchors.setdefault((base, anchor), schema)
                self._dynamic[anchor] = self._dynamic.get(anchor, 0) + 1
        return base

    def _resolve(self, schema: Schema, base: str) -> None:
        reference = _reference_of(schema)
        assert reference is not None
        uri, fragment = urldefrag(_joined(base, reference))
        resource = self._resources.get(uri)
        if resource is None and reference.startswith("#"):
            resource = self._root
        if resource is None:
            return  # of another document
        found: Json | None = resource
        if fragment.startswith("/"):
            found = self._pointed(resource, fragment, base)
            if found is None and resource is not self._root:
                # Generators that set `$id` on parts still write pointers from the root.
                found = self._pointed(self._root, fragment, base)
        elif fragment:
            found = self._anchors.get((uri, unquote(fragment)))
        if not isinstance(found, dict | bool):
            self._broken.add(id(schema))
            return
        self._targets[id(schema)] = found
        if isinstance(found, dict):
            self._targeted.add(id(found))

    def _pointed(self, resource: Schema, fragment: str, base: str) -> Json:
        """Return what a pointer leads to, None if nothing. It counts as a schema from then on."""
        found: Json = resource
        path = self._paths[id(resource)]
        for part in unquote(fragment).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and _index(name) < len(found):
                found = found[_index(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                return None
            path = (path, name)
        if isinstance(found, dict):
            self._explore(found, path, base)
        return found


def _index(name: str) -> int:
    """Return the place in a list that a pointer names; one beyond any list if it names none."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 9 else MAX_SCHEMAS << 16


def _reference_of(schema: Schema) -> str | None:
    """Return a schema's reference. A dynamic one leads where a plain one does, because its anchor
    is looked for in one document alone."""
    for name in ("$ref", "$dynamicRef", "$recursiveRef"):
        found = schema.get(name)
        if isinstance(found, str):
            return found
    return None


def _joined(base: str, reference: str) -> str:
    if len(reference) > MAX_URI_CHARS and not reference.startswith("#"):
        raise SchemaError(
            f"has a name or reference of {len(reference)} characters; at most {MAX_URI_CHARS}"
        )
    try:
        return urljoin(base, reference) if base else reference
    except ValueError as error:
        raise SchemaError(f"has no URI in {reference[:200]!r}: {error}") from error
