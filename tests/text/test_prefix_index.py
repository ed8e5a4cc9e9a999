"""The index of prefixes, against a plain set of them."""

import random

from baton.core.cache_salt import make_salt
from baton.text.prefix_index import PrefixIndex


def test_the_deepest_known_prefix_of_each_holder_is_found() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    index, known = PrefixIndex[str](), set[tuple[tuple[int, ...], str]]()
    for _ in range(300):
        tokens = tuple(rng.randrange(2) for _ in range(rng.randint(1, 12)))
        if rng.random() < 0.3:
            holder = rng.choice("abc")
            index.add(tokens, holder)
            known.add((tokens, holder))
        wanted: dict[str, int] = {}
        for length in range(1, len(tokens)):
            wanted |= {h: length for h in "abc" if (tokens[:length], h) in known}
        assert index.held(tokens) == wanted


def test_a_prefix_is_found_under_its_salt_alone() -> None:
    index, ada, bob = PrefixIndex[str](), make_salt("ada"), make_salt("bob")
    index.add((1, 2), "shared")
    index.add((1, 2, 3), "a", ada)
    index.add((1,), "b", bob)
    tokens = (1, 2, 3, 4)
    assert index.held(tokens) == {"shared": 2}
    assert index.held(tokens, ada) == {"a": 3}
    assert index.held(tokens, bob) == {"b": 1}
    assert index.held(tokens, make_salt("eve")) == {}


def test_the_oldest_are_forgotten() -> None:
    index = PrefixIndex[str](most=2)
    for tokens in ((1,), (2, 2), (1,), (3, 3, 3)):
        index.add(tokens, "a")
    assert index.held((1, 9)) == {"a": 1}
    assert index.held((2, 2, 9)) == {}, "the one that was added longest ago"
    assert index.held((3, 3, 3, 9)) == {"a": 3}
    index.clear()
    assert index.held((1, 9)) == {}
