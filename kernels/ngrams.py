"""Guesses from a sequence's own tokens: what followed its newest n-gram where it occurred last."""

import torch
from torch import Tensor

from baton.kernels.native.recorder import Native


def guess_ngrams(
    tokens: Tensor, rows: Tensor, ends: Tensor, searched: int, sizes: tuple[int, int], most: int
) -> tuple[Tensor, Tensor]:
    """Implement `Kernels.guess_ngrams` in torch."""
    shortest, longest = sizes
    length = tokens.shape[1]
    searched = min(searched, length)
    first = (ends - searched).clamp_(min=0)
    begun = rows * length + first  # where the searched tokens lie
    places = torch.arange(searched, device=ends.device)
    flat = tokens.view(-1)
    text = flat[(begun[:, None] + places).clamp_(max=flat.shape[0] - 1)]
    newest = ends - first  # tokens of it that are the sequence's
    # same[:, p]: as many tokens before p as are the last ones, at most `longest`.
    same = torch.zeros_like(text)
    alike = torch.ones_like(text, dtype=torch.bool)
    for back in range(1, longest + 1):
        last = text.gather(1, (newest - back).clamp(min=0)[:, None])
        alike[:, :back] = False
        alike[:, back:] &= text[:, : searched - back] == last
        same += alike
    before = (places < newest[:, None]) & (same >= shortest)
    rank = torch.where(before, same * searched + places, -1)
    best, at = rank.max(dim=1)
    # What repeats itself goes on repeating itself.
    period = (newest - at).clamp_(min=1)
    ahead = torch.arange(most, device=ends.device)
    source = (at[:, None] + ahead % period[:, None]).clamp_(max=searched - 1)
    found = best >= 0
    guesses = torch.where(found[:, None], text.gather(1, source), 0)
    return guesses.long(), torch.where(found, most, 0)


def guess_ngrams_native(
    native: Native,
    tokens: Tensor,
    rows: Tensor,
    ends: Tensor,
    searched: int,
    sizes: tuple[int, int],
    most: int,
) -> tuple[Tensor, Tensor]:
    """Implement `Kernels.guess_ngrams` natively."""
    count = rows.shape[0]
    rows, ends = rows.contiguous(), ends.contiguous()
    guesses = native.empty(count, most, dtype=torch.int64)
    found = native.empty(count, dtype=torch.int64)
    shortest, longest = sizes
    native.call(
        "guess_ngrams",
        True,
        tokens=tokens,
        rows=rows,
        ends=ends,
        guesses=guesses,
        found=found,
        count=count,
        stride=tokens.stride(0),
        searched=searched,
        shortest=shortest,
        longest=longest,
        most=most,
    )
    return guesses, found
