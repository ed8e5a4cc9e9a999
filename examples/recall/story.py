"""A random story: statements, and questions about what is true so far."""

from random import Random

from recall.language import BOXES, CHATTER, DIGITS, END, NAMES, THINGS

TASKS = ("recall", "count", "mixed", "copy")
LEARNT = ("recall", "copy")
"""Tasks that the committed model answers; its training on the others is not at its end."""
MOST = 5
"""A box holds 0 to 5, so that its value is one digit."""
ASKED = 2
"""Words that a question asks about."""
ASKS_FULL = 0.9
"""The probability that a question asks first about boxes that hold something: an empty state says 0
by itself."""
SAID = 3
"""Words to copy: with the `:` they fill a convolution window of four."""


class Story:
    """The facts told so far: who likes what, and how much each box holds."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._strangers = rng.sample(NAMES, len(NAMES))
        self._weights = (rng.uniform(0.1, 1), rng.uniform(0.3, 1.2), rng.uniform(0, 1.2))
        self._growth = rng.uniform(0.5, 0.9)
        # Some boxes get most of the events, so that short stories reach high numbers too.
        self._popularity = [rng.random() ** 2 + 0.02 for _ in BOXES]
        self._likes: dict[str, str] = {}
        self._holds = dict.fromkeys(BOXES, 0)

    def statement(self, room: int) -> list[str]:
        """Add a random statement of at most `room` words, room >= 1."""
        kind = self._rng.choices(("fact", "event", "chatter"), self._weights)[0]
        if kind == "fact" and self._strangers and room >= 4:
            return self.fact()
        if kind == "chatter" or room < 3:
            return self._chatter(room)
        return self._event()

    def fact(self) -> list[str]:
        """Add a stranger and what they like; a name is told once."""
        name, thing = self._strangers.pop(), self._rng.choice(THINGS)
        self._likes[name] = thing
        return [name, "likes", thing, "."]

    def _event(self) -> list[str]:
        box = self._rng.choices(BOXES, self._popularity)[0]
        holds = self._holds[box]
        grows = holds == 0 or (holds < MOST and self._rng.random() < self._growth)
        self._holds[box] += 1 if grows else -1
        return ["add" if grows else "drop", box, "."]

    def _chatter(self, room: int) -> list[str]:
        words = self._rng.choices(CHATTER, k=min(room - 1, self._rng.randint(1, 6)))
        return [*words, "."]

    def question(self, task: str) -> tuple[list[str], list[str]]:
        """Return a question about what is true now, and its answer; `recall` needs ASKED facts."""
        if task == "copy":
            said = self._rng.sample([*NAMES, *THINGS, *BOXES, *DIGITS], SAID)
            return ["say", *said, ":"], [*said, END]
        asked = self._asked(task)
        pairs = [(word, self._likes.get(word) or str(self._holds[word])) for word in asked]
        return ["ask", *asked, ":"], [*(word for pair in pairs for word in pair), END]

    def _asked(self, task: str) -> list[str]:
        names = {"recall": ASKED, "count": 0, "mixed": 1}[task]
        known = self._rng.sample(list(self._likes), names)
        boxes = self._rng.sample(BOXES, len(BOXES))
        if self._rng.random() < ASKS_FULL:
            boxes.sort(key=lambda box: self._holds[box] == 0)
        asked = known + boxes[: ASKED - names]
        self._rng.shuffle(asked)
        return asked
