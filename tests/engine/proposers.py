"""Proposers of tests: sequences that are known, guessed right or wrong."""

import random
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from baton.core.drafts import DraftSource
from baton.engine.memory.request_tables import RequestTables
from baton.engine.request.request import Request
from baton.engine.speculation.draft_choice import DraftChoice
from baton.engine.speculation.guess_record import Ahead
from baton.engine.speculation.proposer import DecodingStep
from baton.kernels.ngrams import tree_of

BRANCHES, DEPTH = 3, 4  # of trees


class Known:
    """Proposes what follows in sequences that plain decoding has made. Each token is right with
    probability `right`; a wrong one is another of the vocabulary."""

    def __init__(
        self,
        sequences: Iterable[Sequence[int]],
        right: float,
        vocab: int,
        rng: random.Random | None = None,
    ) -> None:
        self._sequences = [tuple(sequence) for sequence in sequences]
        self._right = right
        self._vocab = vocab
        self._rng = rng or random.Random(0)
        self.asked = 0
        self.forgotten: set[int] = set()

    def propose(self, serial: int, token_ids: Sequence[int], most: int) -> Sequence[int]:
        self.asked += 1
        mine, count = tuple(token_ids), len(token_ids)
        rest = next((s[count:] for s in self._sequences if s[:count] == mine), ())
        return [
            token if self._rng.random() < self._right else self._other(token)
            for token in rest[:most]
        ]

    def _other(self, token: int) -> int:
        return (token + 1 + self._rng.randrange(self._vocab - 1)) % self._vocab

    def forget(self, serial: int) -> None:
        self.forgotten.add(serial)


class KnownOnDevice:
    """A `DeviceProposer` of the same: it reads the sequences where a device would."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._mine = copy(known)  # for another thread
        self._mine._rng = random.Random(known._rng.random())

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        drafts = torch.zeros((len(rows), most), dtype=torch.int64)
        counts = torch.zeros(len(rows), dtype=torch.int64)
        for place, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
            self._known.asked += 1
            found = self._mine.propose(0, tables.tokens[row, :end].tolist(), most)
            drafts[place, : len(found)] = torch.tensor(found, dtype=torch.int64)
            counts[place] = len(found)
        return drafts, counts


class KnownTree:
    """A `TreeProposer` of several continuations, one of them `Known`'s: the others part from it
    anywhere, at its last token too, and stand before it or behind it.
    """

    def __init__(self, known: Known, branches: int = BRANCHES, depth: int = DEPTH) -> None:
        self._known = known
        self._mine = copy(known)  # for another thread
        self._mine._rng = random.Random(known._rng.random())
        self._shape = branches, depth
        self.branched = 0  # rows with trees that are no chain

    def propose_tree(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor, Tensor]:
        drafts, nodes = torch.zeros((2, len(rows), most), dtype=torch.int64)
        counts = torch.zeros(len(rows), dtype=torch.int64)
        for place, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
            self._known.asked += 1
            tree = tree_of(self._ways(tables.tokens[row, :end].tolist()), most)
            for node, (token, path) in enumerate(tree):
                drafts[place, node], nodes[place, node] = token, path
            counts[place] = len(tree)
            self.branched += bool(tree) and tree[-1][1] != (2 << len(tree)) - 1
        return drafts, nodes, counts

    def _ways(self, tokens: list[int]) -> list[list[int]]:
        (branches, depth), rng = self._shape, self._mine._rng
        known = list(self._mine.propose(0, tokens, depth))
        ways = [known]
        for _ in range(branches - 1 if known else 0):
            way, parts = [*known], rng.randrange(len(known))
            way[parts:] = [self._mine._other(token) for token in way[parts:]]
            ways.append(way)
        rng.shuffle(ways)
        return ways


class KnownText:
    """A `TextSource` of the same, which has the newest tokens now and then."""

    name = DraftSource.SHARED

    def __init__(self, known: Known) -> None:
        self._known = known
        self.ended_with: list[tuple[int, ...]] = []

    def guesses(self, request: Request, most: int) -> Sequence[int]:
        has = self._known._rng.random() < 0.7
        return self._known.propose(request.serial, request.known_ids, most) if has else ()

    def verified(self, request: Request, source: DraftSource, drafts: int, accepted: int) -> None:
        pass

    def ended(self, request: Request) -> None:
        self.ended_with.append(tuple(request.known_ids))

    def forget(self, request: Request) -> None:
        pass


def proposing(known: Known, side: str) -> dict[str, Any]:
    """The arguments of an engine whose drafts are guessed on that `side`: host; device, where no
    mask depends on them; tree, there too; texts, which have some, and the device the rest."""
    if side == "tree":
        return {
            "proposer": known,
            "guesser": KnownOnDevice(known),
            "tree": KnownTree(known),
            "speculative_eagle_topk": BRANCHES,
            "speculative_num_steps": DEPTH,
        }
    more: dict[str, Any] = {} if side == "host" else {"guesser": KnownOnDevice(known)}
    if side == "texts":
        more["texts"] = (KnownText(known),)
    return {"proposer": known} | more


class RandomChoice(DraftChoice):
    """Chooses windows, and the rows that have drafts, at random: rows are plain, verify drafts, and
    are plain again, beside others that do not."""

    def __init__(self, most: int, rng: random.Random) -> None:
        super().__init__(most, cuts=False)
        self._most = most
        self._rng = rng
        self._until: dict[int, int] = {}
        self._now = 1

    def begin(self, rows: int, ahead: Ahead) -> list[Request]:
        self._now = self._rng.choice([1, 2, self._most])
        return []

    def wants(self, request: Request) -> bool:
        return True

    def guesses(self, request: Request, ahead: Ahead) -> int:
        if request.lengths.computed >= self._until.get(request.serial, 0):
            self._until[request.serial] = request.lengths.computed + self._rng.randrange(1, 12)
        return self._now - 1 if self._rng.random() < 0.6 else 0

    def plain_until(self, request: Request) -> int:
        return self._until.get(request.serial, request.lengths.computed)
