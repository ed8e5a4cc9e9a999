"""The choice of the recurrent states that a step keeps: pure functions of host integers."""

from collections.abc import Collection
from typing import NamedTuple


class Depths(NamedTuple):
    """Absolute token depths, rising.

    wanted: worth the eviction of an older snapshot. opportunistic: worth a free slot, no more, and
    the first to go when slots run out.
    """

    wanted: tuple[int, ...]
    opportunistic: tuple[int, ...]


def prefill_depths(
    prefix: int,
    extend: int,
    grid: int,
    branches: Collection[int],
    budget: int,
    prompt: int | None = None,
) -> Depths:
    """Return the depths at which a chunk of `extend` tokens after `prefix` takes snapshots.

    Any multiple of `grid` in (prefix, prefix + extend] can be taken, `budget` of them at most.
    Wanted are the last, since the request itself and whoever continues it resume there, and the
    deepest of `branches`, where other requests are known to go another way. If a `prompt` of that
    many tokens ends on the grid, its last depth but one is wanted too: when the prompt comes again,
    its last token must be computed. Opportunistic are depths spread evenly between, which bound
    what a request that shares an unknown part must compute again; on a trace of conversations they
    cost hits as soon as they push out snapshots of the wanted kind. A budget of one takes a branch
    point instead of the last depth, as SGLang does.
    """
    first = (prefix // grid + 1) * grid
    last = (prefix + extend) // grid * grid
    if first > last or budget < 1:
        return Depths((), ())
    on_grid = {depth for depth in branches if depth % grid == 0 and first <= depth < last}
    wanted = set(sorted(on_grid)[-max(budget - 1, 1) :])
    if len(wanted) < budget:
        wanted.add(last)
    if prompt == last and len(wanted) < budget and last - grid >= first:
        wanted.add(last - grid)
    others = [depth for depth in range(first, last + 1, grid) if depth not in wanted]
    spread = min(budget - len(wanted), len(others))
    if spread == len(others):
        opportunistic = others
    else:
        parts = range(1, spread + 1)
        opportunistic = [others[len(others) * part // (spread + 1)] for part in parts]
    return Depths(tuple(sorted(wanted)), tuple(opportunistic))
