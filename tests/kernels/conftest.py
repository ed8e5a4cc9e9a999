"""Fixtures of the native operations' tests."""

import zlib

import pytest
import torch
from kernels.native_cases import PoisonedNative
from random_inputs import rng

from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native

__all__ = ["native", "rng"]


@pytest.fixture(scope="module")
def native() -> Native:
    library = load()
    if library is None:
        pytest.skip("no C++ compiler")
    return PoisonedNative(library)


@pytest.fixture(autouse=True)
def draws(request: pytest.FixtureRequest) -> None:
    """Give each test its own draws of torch, whatever ran before it in the process."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
