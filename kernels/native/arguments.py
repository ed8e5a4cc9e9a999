"""The arguments of the native operations: structs made from the layouts of the library."""

import ctypes
from collections.abc import Mapping
from ctypes import c_double, c_int64, c_void_p
from typing import ClassVar

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_KINDS = {0: c_void_p, 1: c_int64, 2: c_double}


class Arguments(ctypes.Structure):
    """The arguments of one operation, built by keyword from tensors and numbers.

    operation: name of the operation in the library
    function:  its address
    nullable:  names of the pointers that may be None
    """

    operation: ClassVar[str]
    function: ClassVar[int]
    nullable: ClassVar[frozenset[str]]
    _names: ClassVar[frozenset[str]]
    _pointers: ClassVar[tuple[str, ...]]

    def __init__(self, **values: Tensor | float | None) -> None:
        """Take the address of each tensor. The caller keeps the tensors alive.

        Raises TypeError for a name that is missing or unknown, and for a pointer that is not given
        as a tensor; a nullable one may be None.
        """
        if values.keys() != self._names:
            missing, unknown = self._names - values.keys(), values.keys() - self._names
            raise TypeError(
                f"{self.operation} is missing {sorted(missing)} and does not know {sorted(unknown)}"
            )
        for name in self._pointers:
            tensor = values[name]
            if isinstance(tensor, Tensor):
                values[name] = tensor.data_ptr()
            elif tensor is not None or name not in self.nullable:
                raise TypeError(f"{name} of {self.operation} must be a tensor, got {tensor!r}")
        super().__init__(**values)


class _Field(ctypes.Structure):
    """A C++ `Field`. A struct has no gaps, so its fields lie in order."""

    _fields_ = [("name", ctypes.c_char_p), ("kind", c_int64)]


class _Exported(ctypes.Structure):
    """A C++ `Exported`: an operation of the library."""


_Exported._fields_ = [
    ("name", ctypes.c_char_p),
    ("function", c_void_p),
    ("nullable", ctypes.c_char_p),
    ("count", c_int64),
    ("fields", ctypes.POINTER(_Field)),
    ("next", ctypes.POINTER(_Exported)),
]


def exported(loaded: ctypes.CDLL) -> Mapping[str, type[Arguments]]:
    """Return the arguments of each operation of the compiled library, by its name."""
    loaded.baton_operations.restype = ctypes.POINTER(_Exported)
    found, each = {}, loaded.baton_operations()
    while each:
        found[each.contents.name.decode()] = _made(each.contents)
        each = each.contents.next
    return found


def _made(operation: _Exported) -> type[Arguments]:
    name = operation.name.decode()
    fields = [
        (field.name.decode(), _KINDS[field.kind]) for field in operation.fields[: operation.count]
    ]
    return type(
        name,
        (Arguments,),
        {
            "operation": name,
            "function": operation.function,
            "nullable": frozenset(operation.nullable.decode().replace(",", " ").split()),
            "_fields_": fields,
            "_names": frozenset(field for field, _ in fields),
            "_pointers": tuple(field for field, kind in fields if kind is c_void_p),
        },
    )
