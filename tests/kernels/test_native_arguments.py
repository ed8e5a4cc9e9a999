"""Arguments of native operations: built by keyword, as the library's own structs are laid out."""

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.core.errors import InvariantError
from baton.kernels.native.arguments import Arguments, exported
from baton.kernels.native.build import SOURCE, BuildError, build

Kinds = dict[str, type[Arguments]]


@pytest.fixture(scope="module")
def kinds() -> Kinds:
    try:
        return dict(exported(ctypes.CDLL(str(build()))))
    except BuildError as error:
        pytest.skip(str(error))


def concat_values() -> dict[str, Any]:
    x, y = torch.zeros(2, 3), torch.zeros(2, 1)
    sizes = {"rows": 2, "x_width": 3, "y_width": 1, "x_stride": 3, "y_stride": 1}
    return {"x": x, "y": y, "out": torch.zeros(2, 4), **sizes}


def test_pointers_are_the_addresses_of_tensors(kinds):
    values = concat_values()
    made = kinds["concat"](**values)
    assert (made.x, made.out) == (values["x"].data_ptr(), values["out"].data_ptr())
    assert (made.rows, made.x_width, made.y_stride) == (2, 3, 1)


def test_a_missing_name_is_refused(kinds):
    values = concat_values()
    del values["y_width"]
    with pytest.raises(TypeError, match=r"concat is missing \['y_width'\]"):
        kinds["concat"](**values)


def test_an_unknown_name_is_refused(kinds):
    with pytest.raises(TypeError, match=r"does not know \['z'\]"):
        kinds["concat"](**concat_values(), z=1)


@pytest.mark.parametrize("wrong", [None, 140000])
def test_a_pointer_that_must_be_there_is_a_tensor(kinds, wrong):
    with pytest.raises(TypeError, match=r"y of concat must be a tensor"):
        kinds["concat"](**(concat_values() | {"y": wrong}))


def test_a_nullable_pointer_may_be_absent(kinds):
    y, out = torch.ones(2), torch.zeros(2)
    made = kinds["add_scaled"](x=None, y=y, out=out, size=2, alpha=0.5)
    assert (made.x, made.y, made.alpha) == (None, y.data_ptr(), 0.5)
    assert kinds["add_scaled"].nullable == {"x"}


def test_every_operation_of_the_table_is_exported_with_its_fields_in_order(kinds):
    line = r"^OPERATION\((\w+), \w+,\s+(?:NONE|NULLABLE\([^)]+\)),\s+([^)]+)\)$"
    table = dict(re.findall(line, SOURCE.read_text(), re.MULTILINE))
    assert table.keys() == kinds.keys() and len(table) > 40
    for name, listed in table.items():
        assert [field for field, _ in kinds[name]._fields_] == listed.replace(",", " ").split()


@pytest.mark.parametrize(
    "listed, message",
    [
        ("NONE, x, y, rows", "the fields of Pair in another order"),
        ("NONE, y, x", "lacks a field of Pair"),
        ("NULLABLE(rows), y, x, rows", "a field of Pair may be null and is no pointer"),
        ("NULLABLE(y, z), y, x, rows", "a field of Pair may be null and is no pointer"),
        ("NULLABLE(x, y), y, x, rows", ""),
    ],
)
def test_a_wrong_line_of_the_table_does_not_compile(
    listed: str, message: str, tmp_path: Path
) -> None:
    source = tmp_path / "table.cpp"
    source.write_text(f"""
struct Team;
#include "layout.h"
struct Pair {{ const float* y; float* x; int64_t rows; }};
void pair(const Pair&, Team&) {{}}
OPERATION(pair, Pair, {listed})
""")
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{SOURCE.parent}", str(source)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, message in found.stderr) == (int(bool(message)), True), found.stderr


def test_an_operation_that_the_library_lacks_is_named(native) -> None:
    with pytest.raises(InvariantError, match="no native operation 'tanh_gated'"):
        native.call("tanh_gated")
