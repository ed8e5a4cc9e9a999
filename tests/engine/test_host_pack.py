"""The buffer of a step's numbers: masks come into it as they are."""

import itertools
from array import array
from collections.abc import Iterator
from typing import NoReturn

import pytest
import torch

from baton.engine.forward.host_pack import HostPack


class Unread(array):  # type: ignore[type-arg]
    """An array whose numbers nobody may look at one by one."""

    def __iter__(self) -> Iterator[NoReturn]:
        raise AssertionError("each number became an object of Python")


def test_masks_are_copied_without_a_python_number_of_each_word() -> None:
    masks = [Unread("q", [1, -1, 2]), Unread("q", [-(1 << 63), 5, 6])]
    pack = HostPack()
    pack.ints("before", [7])
    pack.masks("allowed", masks)
    pack.ints("after", [8])
    packed = pack.ship(torch.device("cpu"))
    assert packed.ints("allowed").tolist() == [1, -1, 2, -(1 << 63), 5, 6]
    assert packed.ints("before").tolist() == [7] and packed.ints("after").tolist() == [8]
    with pytest.raises(AssertionError, match="object of Python"):
        pack.ints("one by one", itertools.chain.from_iterable(masks))
