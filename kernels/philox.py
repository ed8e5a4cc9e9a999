"""Counter-based noise: Philox-4x32-10 (Salmon et al., 2011, "Parallel random numbers").

A number is a pure function of a seed, an output position and a vocabulary index. It depends neither
on the batch nor on what was drawn before, so a request that moves to another worker draws the same.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox_4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute four 32-bit words from a counter of four and a key of two.

    All int64 tensors that broadcast together and hold unsigned 32-bit values; so do the results.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # A product of 32-bit words may pass 2^63 and wrap: its 64 bits are right all the same.
        low = c0 * _MULTIPLIERS[0]
        high = c2 * _MULTIPLIERS[1]
        c0 = ((high >> 32) & _MASK) ^ c1 ^ k0
        c2 = ((low >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = high & _MASK, low & _MASK
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def vocabulary_uniform(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Draw uniform noise in the open interval (0, 1) for every vocabulary index of every row.

    seeds:     [R] int64, all 64 bits count
    positions: [R] int64, index of the output token that is being sampled
    returns    [R, vocab_size] float32; entry (r, v) depends on seeds[r], positions[r] and v alone
    """
    seeds, positions = seeds[:, None], positions[:, None]
    blocks = torch.arange(-(-vocab_size // 4), device=seeds.device)[None, :]
    counter = (
        blocks,
        positions & _MASK,
        (positions >> 32) & _MASK,
        torch.zeros_like(positions),
    )
    words = philox_4x32(counter, (seeds & _MASK, (seeds >> 32) & _MASK))
    bits = torch.stack(words, dim=2).flatten(1)[:, :vocab_size]
    # The largest words round to 1.0 in float32; the largest number below it stands for them.
    return ((bits.float() + 0.5) * 2.0**-32).clamp_(max=1.0 - 2.0**-24)
