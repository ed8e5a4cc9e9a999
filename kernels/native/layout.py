"""The comparison of argument structs with the layouts that the compiled library exports."""

import ctypes

from baton.core.errors import BatonError
from baton.kernels.native.signatures import Arguments

_KINDS = {0: ctypes.c_void_p, 1: ctypes.c_int64, 2: ctypes.c_double}


class LayoutError(BatonError):
    """A struct differs from the library's. Its Python class or its C++ struct must be corrected."""


class _Field(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("offset", ctypes.c_int64),
        ("kind", ctypes.c_int64),
    ]


class _Layout(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("fields", ctypes.POINTER(_Field)),
    ]


def check_layout(loaded: ctypes.CDLL, arguments: type[Arguments]) -> None:
    """Compare names, types and offsets of all fields, and the size. Raise LayoutError."""
    export = getattr(loaded, f"baton_{arguments.operation}_layout")
    export.restype = ctypes.POINTER(_Layout)
    layout = export().contents
    struct = arguments.__name__
    for index, (name, kind, *_) in enumerate(arguments._fields_[: layout.count]):
        field = layout.fields[index]
        theirs = (field.name.decode(), _KINDS[field.kind].__name__, field.offset)
        ours = (name, kind.__name__, getattr(arguments, name).offset)
        if ours != theirs:
            raise LayoutError(
                f"field {index} of {struct} is {_described(*ours)}; the library's is "
                f"{_described(*theirs)}"
            )
    sizes = (len(arguments._fields_), ctypes.sizeof(arguments))
    if sizes != (layout.count, layout.size):
        raise LayoutError(
            f"{struct} has {sizes[0]} fields in {sizes[1]} bytes; the library's has "
            f"{layout.count} in {layout.size}"
        )


def _described(name: str, kind: str, offset: int) -> str:
    return f"{name!r}, a {kind} at byte {offset}"
