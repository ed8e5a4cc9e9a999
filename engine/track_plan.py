"""Which recurrent states a step keeps: pure functions of host integers."""


def prefill_depths(
    prefix: int, extend: int, grid: int, branch: int | None, budget: int
) -> tuple[int, ...]:
    """The depths, rising, at which a chunk of `extend` tokens after `prefix` takes snapshots.

    Any multiple of `grid` in (prefix, prefix + extend] can be taken, `budget` of them at most.
    The last comes first, since the request itself and whoever continues it resume there; then
    `branch`, where another request is known to have gone another way; then depths spread evenly,
    which bounds what a request that shares an unknown part must compute again. A budget of one
    takes the branch point instead of the last depth, as SGLang does.
    """
    first = (prefix // grid + 1) * grid
    last = (prefix + extend) // grid * grid
    if first > last or budget < 1:
        return ()
    wanted = branch is not None and branch % grid == 0 and first <= branch <= last
    count = (last - first) // grid + 1
    if budget >= count:
        return tuple(range(first, last + 1, grid))
    chosen = {branch} if wanted and branch is not None else set()
    if budget > len(chosen):
        chosen.add(last)
    spread = budget - len(chosen)
    others = [depth for depth in range(first, last + 1, grid) if depth not in chosen]
    for part in range(1, spread + 1):
        chosen.add(others[len(others) * part // (spread + 1)])
    return tuple(sorted(chosen))


def decode_depth(length: int, grid: int) -> bool:
    """Whether a decoding row whose state will hold `length` tokens is tracked in this step."""
    return length % grid == 0
