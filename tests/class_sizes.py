"""Sizes of classes by syntax: their instance attributes and their methods.

Attributes are annotated fields and everything that a method assigns to `self`. Methods are every
`def` of the class but dunder methods; properties count. What a class inherits from a class of ours
counts too, so that a split into mixins makes nothing smaller; a base that gives a reason for its
size is left out.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REASON = "Large because "
"""Begins the docstring paragraph that gives the reason for a class over the limits."""

MAX_ATTRIBUTES = 20
MAX_VALUE_ATTRIBUTES = 40
"""The limit of classes that hold values, which are decided once: frozen dataclasses, NamedTuples,
TypedDicts, request bodies. Their fields are the options or the names of a protocol, and no method
changes them."""
MAX_METHODS = 25

_VALUE_BASES = frozenset({"NamedTuple", "TypedDict", "BaseModel"})


@dataclass(frozen=True)
class ClassSize:
    """One class as it is written, without what it inherits."""

    path: Path
    name: str
    bases: tuple[str, ...]
    attributes: frozenset[str]
    methods: frozenset[str]
    is_frozen: bool  # a frozen dataclass
    has_reason: bool


def oversized(sizes: Sequence[ClassSize]) -> Iterator[str]:
    """Yield a line for each class over the limits that gives no reason."""
    classes = {size.name: size for size in sizes}
    for size in sizes:
        if size.has_reason:
            continue
        line = [size, *_ancestors(size, classes)]
        attributes = frozenset().union(*(each.attributes for each in line))
        methods = frozenset().union(*(each.methods for each in line))
        excused = {
            method
            for base in _ancestors(size, classes, with_reason=True)
            if base.has_reason
            for each in (base, *_ancestors(base, classes, with_reason=True))
            for method in each.methods
        }
        is_value = size.is_frozen or any(_VALUE_BASES & set(each.bases) for each in line)
        limit = MAX_VALUE_ATTRIBUTES if is_value else MAX_ATTRIBUTES
        if len(attributes) > limit:
            yield f"{size.path} {size.name}: {len(attributes)} attributes, at most {limit}"
        if len(methods - excused) > MAX_METHODS:
            many = len(methods - excused)
            yield f"{size.path} {size.name}: {many} methods, at most {MAX_METHODS}"


def _ancestors(
    size: ClassSize, classes: Mapping[str, ClassSize], with_reason: bool = False
) -> Iterator[ClassSize]:
    """Yield the bases of a class, and theirs, as far as they are in `classes`."""
    for name in size.bases:
        base = classes.get(name)
        if base is not None and base is not size and (with_reason or not base.has_reason):
            yield base
            yield from _ancestors(base, classes, with_reason)


def class_sizes(path: Path) -> Iterator[ClassSize]:
    """Measure every class in `path`, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield _measure(path, node)


def _measure(path: Path, node: ast.ClassDef) -> ClassSize:
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    bases = tuple(ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases)
    fields = {
        n.target.id
        for n in node.body
        if isinstance(n, ast.AnnAssign)
        and isinstance(n.target, ast.Name)
        and "ClassVar" not in ast.unparse(n.annotation)
    }
    assigned = {name for method in methods for name in _assigned_to_self(method)}
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    return ClassSize(
        path,
        node.name,
        bases,
        frozenset(fields | assigned),
        frozenset(m.name for m in methods if not m.name.startswith("__")),
        any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list),
        any(paragraph.startswith(REASON) for paragraph in paragraphs),
    )


def _assigned_to_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the attributes that `method` stores on its first argument."""
    if not method.args.args:
        return
    me = method.args.args[0].arg
    for node in ast.walk(method):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == me
        ):
            yield node.attr
