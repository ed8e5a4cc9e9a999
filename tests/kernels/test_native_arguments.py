"""Arguments of native operations: built by keyword, and laid out as the library reads them."""

import ctypes
from pathlib import Path

import pytest
import torch

from baton.kernels.native import signatures
from baton.kernels.native.build import BuildError, build
from baton.kernels.native.layout import LayoutError, check_layout
from baton.kernels.native.library import Library
from baton.kernels.native.signatures import Arguments, ConcatArguments, EmbeddingArguments, _fields


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return build()
    except BuildError as error:
        pytest.skip(str(error))


def concat_values() -> dict[str, object]:
    x, y = torch.zeros(2, 3), torch.zeros(2, 1)
    sizes = {"rows": 2, "x_width": 3, "y_width": 1, "x_stride": 3, "y_stride": 1}
    return {"x": x, "y": y, "out": torch.zeros(2, 4), **sizes}


def test_pointers_are_the_addresses_of_tensors():
    values = concat_values()
    made = ConcatArguments(**values)
    assert (made.x, made.out) == (values["x"].data_ptr(), values["out"].data_ptr())
    assert (made.rows, made.x_width, made.y_stride) == (2, 3, 1)


def test_a_missing_name_is_refused():
    values = concat_values()
    del values["y_width"]
    with pytest.raises(TypeError, match=r"ConcatArguments is missing \['y_width'\]"):
        ConcatArguments(**values)


def test_an_unknown_name_is_refused():
    with pytest.raises(TypeError, match=r"does not know \['z'\]"):
        ConcatArguments(**concat_values(), z=1)


@pytest.mark.parametrize("wrong", [None, 140000])
def test_a_pointer_that_must_be_there_is_a_tensor(wrong):
    with pytest.raises(TypeError, match=r"ConcatArguments\.y must be a tensor"):
        ConcatArguments(**(concat_values() | {"y": wrong}))


def test_an_optional_pointer_may_be_absent():
    ids, table, out = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1), torch.zeros(1, 1)
    made = EmbeddingArguments(
        ids=ids,
        table=table,
        scale=None,
        out=out,
        rows=1,
        width=1,
        first=0,
        count=1,
        packed=0,
        dtype=0,
    )
    assert made.scale is None and made.table == table.data_ptr()


def test_every_optional_name_is_a_pointer():
    for kind in signatures.OPERATIONS:
        assert kind.optional <= set(kind._pointers), kind


def test_every_struct_is_laid_out_as_the_librarys(path):
    loaded = ctypes.CDLL(str(path))
    for kind in signatures.OPERATIONS:
        check_layout(loaded, kind)


SWAPPED = _fields("y x out", "rows x_width y_width x_stride y_stride")
SHORT = _fields("x y out", "rows x_width y_width x_stride")
LONG = _fields("x y out", "rows x_width y_width x_stride y_stride more")
RETYPED = _fields("x y out", "rows x_width y_width x_stride", "y_stride")


@pytest.mark.parametrize(
    "fields, message",
    [
        (SWAPPED, r"field 0 of Broken is 'y', a c_void_p at byte 0; the library's is 'x'"),
        (SHORT, r"Broken has 7 fields in 56 bytes; the library's has 8 in 64"),
        (LONG, r"Broken has 9 fields in 72 bytes; the library's has 8 in 64"),
        (RETYPED, r"field 7 of Broken is 'y_stride', a c_double at byte 56; the library's is"),
    ],
)
def test_a_struct_that_differs_from_the_librarys_is_named_when_it_is_loaded(
    path, fields, message, monkeypatch
):
    class Broken(Arguments):
        operation = "concat"
        _fields_ = fields

    monkeypatch.setattr("baton.kernels.native.library.OPERATIONS", (Broken,))
    with pytest.raises(LayoutError, match=message):
        Library(path)
