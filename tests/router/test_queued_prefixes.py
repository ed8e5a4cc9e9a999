"""The depths at which prompts that wait at the router go different ways."""

from contextlib import ExitStack

from hypothesis import example, given
from hypothesis import strategies as st

from baton.router.cluster_view.queued_prefixes import FINE, MOST_JUNCTIONS, QueuedPrefixes, depths
from baton.text.prefix_digest import PromptPrefixes

GRID = 4
prompts = st.lists(st.integers(0, 1), max_size=4 * GRID).map(tuple)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the common prefix of two prompts, in whole steps of the grid."""
    same = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return same // GRID * GRID


@given(prompt=prompts, queue=st.lists(prompts, max_size=6), cached=st.sampled_from([0, 4, 8]))
@example(prompt=(1,) * 9, queue=[(1,) * 8 + (0,)], cached=0)
def test_junctions_are_the_ends_of_what_is_shared_with_those_that_wait(
    prompt: tuple[int, ...], queue: list[tuple[int, ...]], cached: int
) -> None:
    queued = QueuedPrefixes()
    with ExitStack() as waits:
        for each in queue:
            waits.enter_context(queued.waiting(PromptPrefixes(each), GRID))
        ends = [depth for each in queue if (depth := common(prompt, each)) > cached]
        found = queued.junctions(PromptPrefixes(prompt), GRID, cached)
        by_need = sorted(set(ends), key=lambda depth: (-ends.count(depth), -depth))
        assert found == sorted(by_need[:MOST_JUNCTIONS])
    assert not len(queued) and not queued.junctions(PromptPrefixes(prompt), GRID, cached)


def test_prompts_of_other_salts_share_nothing() -> None:
    queued = QueuedPrefixes()
    ada, ben = (PromptPrefixes(range(9), salt) for salt in (b"ada", b"ben"))
    with queued.waiting(ada, GRID):
        assert queued.junctions(ada, GRID) == [8]
        assert not queued.junctions(ben, GRID)
        assert not queued.junctions(ada, 0), "workers that keep no states"


@given(one=st.integers(0, 200_000), other=st.integers(0, 200_000))
def test_prompts_are_compared_at_the_same_depths_and_long_ones_at_few(one: int, other: int) -> None:
    short, long = (depths(tokens, 256) for tokens in sorted((one, other)))
    assert long[: len(short)] == short
    assert all(depth % 256 == 0 for depth in long) and len(long) <= 5 * FINE
    assert short[:FINE] == list(range(256, min(one, other) + 1, 256))[:FINE]
