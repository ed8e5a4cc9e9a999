"""The canary finds a slot or a page that does not hold what a step believes."""

import pytest
from engine.engines import greedy, make_engine, run, tokens_of
from engine.hash_model import HashModel, expected_tokens

from baton.core.cache_salt import SHARED
from baton.core.errors import InvariantError
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec

PROMPT = tuple(range(40))


def warm() -> Engine:
    engine = make_engine(canary=True)
    engine.submit(RequestSpec("first", PROMPT, greedy(10)))
    run(engine)
    return engine


def test_a_sound_engine_never_sings() -> None:
    engine = warm()
    engine.submit(RequestSpec("again", PROMPT, greedy(10)))
    assert tokens_of(run(engine), "again") == expected_tokens(HashModel(), PROMPT, 10)


def test_a_snapshot_in_the_wrong_slot_is_found() -> None:
    engine = warm()
    match = engine._pools.cache.match(b"", 0)
    (child,) = match.node.children.values()
    while child.children:
        (child,) = child.children.values()
    node = child.parent
    assert node is not None and node.snapshot is not None
    while node.depth != 32:
        node = node.parent
        assert node is not None
    other = next(s for s in range(1, engine.states.ids.size) if s != node.snapshot)
    node.snapshot = other
    engine.submit(RequestSpec("again", PROMPT, greedy(10)))
    with pytest.raises(InvariantError, match=rf"slot {other}.* 32 tokens"):
        for _ in range(9):
            engine.step()


def test_a_page_of_another_prefix_is_found() -> None:
    engine = warm()
    (first,) = engine._pools.cache.tree.roots[SHARED].children.values()
    first.pages.reverse()
    engine.submit(RequestSpec("again", PROMPT, greedy(10)))
    with pytest.raises(InvariantError, match=r"page .* first 8 tokens"):
        run(engine)
