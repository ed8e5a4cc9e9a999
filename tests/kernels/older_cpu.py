"""A pytest plugin: the native kernels as gcc compiles them with the options in `OLDER_CPU`."""

import os

from baton.kernels.native import build
from baton.kernels.native.library import load

_CHOSEN = "-march=native"
_OPTIONS = os.environ["OLDER_CPU"].split()

assert _CHOSEN in build._FLAGS
vars(build)["_FLAGS"] = tuple(
    option for flag in build._FLAGS for option in (_OPTIONS if flag == _CHOSEN else [flag])
)


def pytest_collection_finish() -> None:
    """See that the tests will run what was asked for."""
    library = load()
    assert library is not None and not library.tiles
    if _CHOSEN not in _OPTIONS:
        assert not library.wide_vectors and not library.dots_bf16
