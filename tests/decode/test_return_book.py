"""The book of prefixes, against a plain set of them."""

import random

from baton.decode.return_book import ReturnBook


def test_the_deepest_known_prefix_is_found(seeded: random.Random) -> None:
    book, known = ReturnBook(), set[tuple[int, ...]]()
    for _ in range(200):
        tokens = tuple(seeded.randrange(2) for _ in range(seeded.randint(1, 12)))
        if seeded.random() < 0.3:
            book.add(tokens)
            known.add(tokens)
        wanted = max((n for n in range(1, len(tokens)) if tokens[:n] in known), default=0)
        assert book.deepest(tokens) == wanted


def test_the_oldest_are_forgotten() -> None:
    book = ReturnBook(most=2)
    for tokens in ((1,), (2, 2), (1,), (3, 3, 3)):
        book.add(tokens)
    assert book.deepest((1, 9)) == 1
    assert book.deepest((2, 2, 9)) == 0, "the one that was added longest ago"
    assert book.deepest((3, 3, 3, 9)) == 3
