"""A pytest plugin: the native kernels as gcc compiles them for the architecture in `OLDER_CPU`."""

import os

from baton.kernels.native import build
from baton.kernels.native.library import load

_CHOSEN = "-march=native"

assert _CHOSEN in build._FLAGS
build._FLAGS = tuple(
    f"-march={os.environ['OLDER_CPU']}" if flag == _CHOSEN else flag for flag in build._FLAGS
)


def pytest_collection_finish() -> None:
    """See that the tests will run what was asked for."""
    library = load()
    assert library is not None
    assert not library.wide_vectors and not library.dots_bf16
