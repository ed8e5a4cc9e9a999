"""Masks of the tokens that may come: what they rule out, and the memory that this takes."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from baton.kernels.sampling import allow_tokens


class LargestTensor(TorchDispatchMode):
    """The bytes of the largest tensor that torch's operations have returned inside."""

    nbytes = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.nbytes = max(self.nbytes, result.nbytes)
        return result


def masks_of(allowed: Tensor) -> Tensor:
    """The masks of allowed [n, V] bool: [n, W] int64, bit by bit."""
    count, vocab = allowed.shape
    masks = [[0] * -(-vocab // 64) for _ in range(count)]
    for row, token in allowed.nonzero().tolist():
        masks[row][token // 64] |= 1 << token % 64
    signed = [[word - (1 << 64) if word >> 63 else word for word in mask] for mask in masks]
    return torch.tensor(signed, dtype=torch.int64)


@pytest.mark.parametrize("vocab", [1, 7, 63, 64, 65, 200, 320])
@pytest.mark.parametrize("among_others", [False, True])
def test_a_mask_rules_out_every_token_but_those_of_its_bits(
    vocab: int, among_others: bool, rng: random.Random
) -> None:
    draw = torch.Generator().manual_seed(rng.getrandbits(62))
    logits = torch.randn((6, vocab), generator=draw)
    allowed = torch.rand((3, vocab), generator=draw) < 0.5
    rows = torch.tensor([4, 0, 3])
    masks = masks_of(allowed)
    if among_others:  # a view of a step's packed copy
        masks = torch.cat((torch.tensor([-1]), masks.flatten()))[1:].view(3, -1)
    ref = logits.clone()
    ref[rows] = torch.where(allowed, logits[rows], -torch.inf)
    allow_tokens(logits, rows, masks)
    torch.testing.assert_close(logits, ref, rtol=0, atol=0)


def test_no_tensor_is_larger_than_the_rows_of_logits() -> None:
    logits = torch.zeros((16, 4096))
    masks = torch.zeros((16, 64), dtype=torch.int64)
    with LargestTensor() as largest:
        allow_tokens(logits, torch.arange(16), masks)
    assert largest.nbytes <= logits.nbytes
