"""Guesses from a sequence's own tokens: what followed its newest n-gram where it occurred last, or
where it occurred several times.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from baton.kernels.native.recorder import Native

_LOOKED_AT = 64  # places of one sequence: LOOKED_AT in native/ngrams.h


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


def guess_tree(
    tokens: Tensor,
    rows: Tensor,
    ends: Tensor,
    searched: int,
    sizes: tuple[int, int],
    most: int,
    branches: int,
    depth: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Implement `Kernels.guess_tree` on the host, which reads the tokens."""
    count = rows.shape[0]
    guesses, nodes = torch.zeros((2, count, most), dtype=torch.int64).unbind()
    found = torch.zeros(count, dtype=torch.int64)
    for place, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
        text = tokens[row, max(0, end - searched) : end].tolist()
        ways: list[list[int]] = []
        for at in islice(_places_alike(text, sizes), _LOOKED_AT):
            period = len(text) - at
            way = [text[at + ahead % period] for ahead in range(depth)]
            if way not in ways and len(ways) < branches:
                ways.append(way)
        tree = tree_of(ways, most)
        found[place] = len(tree)
        for node, (token, path) in enumerate(tree):
            guesses[place, node], nodes[place, node] = token, path
    return guesses.to(rows.device), nodes.to(rows.device), found.to(rows.device)


def tree_of(ways: Sequence[Sequence[int]], most: int) -> list[tuple[int, int]]:
    """Return at most `most` nodes of the tree of `ways`, level by level: the token of each, and its
    bits, see `Kernels.guess_tree`.
    """
    found: list[tuple[int, int]] = []
    paths = [1] * len(ways)  # of the node that each way has got to; 0: it is left out
    for depth in range(max(map(len, ways), default=0)):
        level = len(found)
        for place, way in enumerate(ways):
            if depth >= len(way) or not paths[place]:
                paths[place] = 0
                continue
            behind, path = paths[place], 0
            for node, (token, known) in enumerate(found[level:], level + 1):
                if token == way[depth] and known == behind | 1 << node:
                    path = known
            if not path and len(found) < most:
                path = behind | 2 << len(found)
                found.append((way[depth], path))
            paths[place] = path
    return found


def _places_alike(text: list[int], sizes: tuple[int, int]) -> Iterator[int]:
    """Yield the places behind tokens that are the text's last ones: first where most are, at most
    the longest size, and of these the last.
    """
    shortest, longest = sizes
    count = len(text)
    for size in range(longest, shortest - 1, -1):
        for at in range(count - 1, size - 1, -1):
            if text[at - size : at] != text[count - size :]:
                continue
            if size == longest or at == size or text[at - size - 1] != text[count - size - 1]:
                yield at


def guess_tree_native(
    native: Native,
    tokens: Tensor,
    rows: Tensor,
    ends: Tensor,
    searched: int,
    sizes: tuple[int, int],
    most: int,
    branches: int,
    depth: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Implement `Kernels.guess_tree` natively."""
    count = rows.shape[0]
    rows, ends = rows.contiguous(), ends.contiguous()
    guesses = native.empty(count, most, dtype=torch.int64)
    nodes = native.empty(count, most, dtype=torch.int64)
    found = native.empty(count, dtype=torch.int64)
    shortest, longest = sizes
    native.call(
        "guess_tree",
        True,
        tokens=tokens,
        rows=rows,
        ends=ends,
        guesses=guesses,
        nodes=nodes,
        found=found,
        count=count,
        stride=tokens.stride(0),
        searched=searched,
        shortest=shortest,
        longest=longest,
        most=most,
        branches=branches,
        depth=depth,
    )
    return guesses, nodes, found
