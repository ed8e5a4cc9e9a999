"""The n-grams that a device finds are those that the host finds."""

import random

import pytest
import torch
from torch import Tensor

from baton.engine.memory.request_tables import RequestTables, TableSizes
from baton.engine.speculation import ngram
from baton.engine.speculation.ngram import DeviceNgram, NgramProposer
from baton.engine.speculation.proposer import DecodingStep
from baton.kernels.base import Kernels
from baton.kernels.dispatch import select
from baton.kernels.kernel_choice import KernelChoice

LENGTH = 64


def tables_of(sequences: list[list[int]], rng: random.Random) -> RequestTables:
    """Row i + 1 has sequence i; what follows it is left of another."""
    tables = RequestTables(TableSizes(len(sequences) + 1, 4, LENGTH, 8), torch.device("cpu"))
    tables.tokens.copy_(torch.tensor([[rng.randrange(4) for _ in range(LENGTH)]]))
    for row, tokens in enumerate(sequences, 1):
        tables.begin(row, torch.tensor(tokens, dtype=torch.int32))
    return tables


def _step(ends: Tensor) -> DecodingStep:
    """A step, which n-grams are guessed without."""
    none = torch.zeros_like(ends)
    first = lambda logits, _, most: logits.topk(most)  # noqa: E731
    return DecodingStep(none, none, (), lambda logits, _: logits.argmax(-1), first, none > 0, 0)


@pytest.fixture(params=[KernelChoice.TORCH, KernelChoice.AUTO])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return select(torch.device("cpu"), torch.float32, request.param)


@pytest.mark.parametrize("most", [1, 3, 7])
@pytest.mark.parametrize("searched", [LENGTH, 4096, 20])
def test_guesses_are_those_of_the_host(
    seeded: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    searched: int,
    most: int,
    kernels: Kernels,
) -> None:
    monkeypatch.setattr(ngram, "SEARCHED", searched)
    sequences = [
        [seeded.randrange(seeded.choice([2, 4, 40])) for _ in range(length)]
        for length in (1, 2, 3, 5, *(seeded.randint(4, LENGTH) for _ in range(40)), LENGTH)
    ]
    rows = torch.randperm(len(sequences)) + 1
    ends = torch.tensor([len(tokens) for tokens in sequences])[rows - 1]
    tables = tables_of(sequences, seeded)
    drafts, counts = DeviceNgram(kernels).propose(tables, rows, ends, most, _step(ends))
    found = 0
    for place, row in enumerate(rows.tolist()):
        seen = sequences[row - 1][-searched:]
        expected = list(NgramProposer().propose(0, seen, most))
        assert drafts[place, : counts[place]].tolist() == expected
        assert drafts.shape[1] == most and not drafts[place, counts[place] :].any()
        found += bool(expected)
    assert 0 < found < len(sequences)
