"""Texts with long forced runs: from some word on, each word follows from those before.

    plum tea fig tea red . plum tea fig tea red . plum ...      a loop
    from 7 by 3 : 10 13 16 19 22 ...                            a count, modulo NUMBERS
    ada 3 ben 21 . ada 4 ben 22 . ada 5 ben 23 . ...            a ladder, which counts by one

Each text is a few such runs, the last of which goes on for ever. Everything here is a pure function
of a seed: no torch, no files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

HELD_OUT = 1_000_000_000
"""Seeds from here on are never drawn in training."""
LAST_RUN = 56
"""Words of a text at most before its last run."""
NUMBERS = 32
NAMES = "ada ben cleo dan eve finn gus hana".split()
WORDS = "plum fig pear kiwi lime mango tea milk juice cocoa red blue green gold pink grey".split()
END = "<end>"
UNKNOWN = "<unk>"

VOCABULARY: tuple[str, ...] = (
    UNKNOWN,
    END,
    *".:",
    "from",
    "by",
    *NAMES,
    *WORDS,
    *(str(number) for number in range(NUMBERS)),
)
IDS = {word: index for index, word in enumerate(VOCABULARY)}

Run = Iterator[tuple[str, bool]]
"""Words without end, and whether each is forced."""


@dataclass(frozen=True)
class Text:
    """Token ids, and of each whether those before it force it."""

    ids: tuple[int, ...]
    forced: tuple[bool, ...]


def text(seed: int, length: int) -> Text:
    """Draw a text of `length` tokens, equal on every machine."""
    rng = Random(seed)
    before = _runs(rng, rng.randint(0, LAST_RUN))
    return _whole(before, _any_run(rng), length)


def loop(seed: int, start: int, phrase: int, length: int) -> Text:
    """Draw a text whose last run is a loop of `phrase` words and a `.`, begun at word `start`."""
    rng = Random(seed)
    before = _runs(rng, start)
    return _whole(before, _loop(rng, phrase), length)


def _runs(rng: Random, length: int) -> list[tuple[str, bool]]:
    words: list[tuple[str, bool]] = []
    while len(words) < length:
        run, part = _any_run(rng), rng.randint(8, 40)
        words += [next(run) for _ in range(min(part, length - len(words)))]
    return words


def _whole(before: list[tuple[str, bool]], last: Run, length: int) -> Text:
    words = [*before, *islice(last, length)][:length]
    ids, forced = zip(*((IDS[word], flag) for word, flag in words), strict=True)
    return Text(ids, forced)


def _any_run(rng: Random) -> Run:
    return rng.choice((_any_loop, _any_loop, _count, _ladder))(rng)


def _any_loop(rng: Random) -> Run:
    return _loop(rng, rng.randint(4, 14))


def _loop(rng: Random, length: int) -> Run:
    phrase = _phrase(rng, length)
    yield from ((word, False) for word in phrase)
    while True:
        yield from ((word, True) for word in phrase)


def _phrase(rng: Random, length: int) -> list[str]:
    """Draw words, some of them twice, of which two in a row tell the next."""
    known = rng.sample(WORDS, min(len(WORDS), 3 + length // 2))
    while True:
        phrase = [*rng.choices(known, k=length), "."]
        if len(set(zip(phrase, phrase[1:] + phrase[:1], strict=True))) == len(phrase):
            return phrase


def _count(rng: Random) -> Run:
    number, step = rng.randrange(NUMBERS), rng.randint(1, 5)
    yield from ((word, False) for word in ("from", str(number), "by", str(step), ":"))
    while True:
        number = (number + step) % NUMBERS
        yield str(number), True


def _ladder(rng: Random) -> Run:
    names = rng.sample(NAMES, rng.randint(2, 4))
    numbers = [rng.randrange(NUMBERS) for _ in names]
    forced = False
    while True:
        for place, name in enumerate(names):
            yield name, forced
            yield str(numbers[place]), forced
            numbers[place] = (numbers[place] + 1) % NUMBERS
        yield ".", forced
        forced = True
