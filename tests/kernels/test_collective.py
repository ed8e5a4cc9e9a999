"""Native sums and gathers over ranks that are threads here, over one piece of memory."""

import random
import threading
from collections.abc import Callable

import pytest
import torch
from kit.polling import wait_until
from torch import Tensor

from baton.kernels.collective import (
    END_WORD,
    OTHER_SUM,
    Meeting,
    all_reduce_native,
    gather_columns_native,
    shared_words,
)
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native

CAPACITY = 64
DEADLINE_S = 60.0


class Ranks:
    """Ranks over one piece of memory, a thread each."""

    def __init__(self, size: int, limit_s: float = DEADLINE_S) -> None:
        library = load()
        assert library is not None
        self.shared = torch.zeros(shared_words(size, CAPACITY), dtype=torch.int32)
        self.natives = [Native(library) for _ in range(size)]
        self.meetings = [
            Meeting(
                self.shared, torch.zeros(2, dtype=torch.int64), rank, size, CAPACITY, 0, limit_s
            )
            for rank in range(size)
        ]

    def run(self, work: Callable[[Native, Meeting], Tensor]) -> list[Tensor]:
        """Return what `work` gives on each rank."""
        found: dict[int, Tensor] = {}

        def on(rank: int) -> None:
            found[rank] = work(self.natives[rank], self.meetings[rank])

        threads = [threading.Thread(target=on, args=(r,)) for r in range(len(self.natives))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        return [found[rank] for rank in range(len(self.natives))]


@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_get_the_same_bits_of_the_sum_in_order(size: int, rng: random.Random) -> None:
    ranks = Ranks(size)
    for count in (1, 5, CAPACITY, CAPACITY + 1, 5 * CAPACITY + 7):
        parts = [torch.randn(count) * 10 ** rng.randint(-3, 3) for _ in range(size)]
        wanted = parts[0].clone()
        for part in parts[1:]:
            wanted += part

        def reduce(native: Native, meeting: Meeting, parts: list[Tensor] = parts) -> Tensor:
            x = parts[meeting.rank].clone()
            all_reduce_native(native, x, meeting)
            return x

        for _ in range(3):
            assert all(torch.equal(found, wanted) for found in ranks.run(reduce))


def test_rank_0_gathers_columns_of_unequal_widths() -> None:
    ranks, widths = Ranks(3), (5, 4, 7)
    on_device = torch.tensor(widths)
    for rows in (1, 3, 40):
        parts = [torch.randn(rows, width) for width in widths]

        def gather(native: Native, meeting: Meeting, parts: list[Tensor] = parts) -> Tensor:
            return gather_columns_native(native, parts[meeting.rank], on_device, widths, meeting)

        whole, *others = ranks.run(gather)
        assert torch.equal(whole, torch.cat(parts, dim=1))
        assert all(torch.equal(x, y) for x, y in zip(others, parts[1:], strict=True))


def test_collectives_can_be_recorded() -> None:
    ranks = Ranks(2)
    inputs = [torch.randn(9), torch.randn(9)]

    def record(native: Native, meeting: Meeting) -> Tensor:
        x = inputs[meeting.rank].clone()
        recording, _ = native.record(lambda: all_reduce_native(native, x, meeting))
        for _ in range(2):
            x.copy_(inputs[meeting.rank])
            recording.run()
        return x

    assert all(torch.equal(found, inputs[0] + inputs[1]) for found in ranks.run(record))


@pytest.mark.parametrize("reports", [1, 2])
def test_a_rank_that_is_a_meeting_ahead_is_noticed_by_all(reports: int) -> None:
    """One that comes twice where the others come once would add its part to another layer's."""
    ranks, width = Ranks(2), torch.tensor([3, 3])

    def step(native: Native, meeting: Meeting) -> Tensor:
        for _ in range(reports if meeting.rank else 1):
            all_reduce_native(native, torch.ones(12), meeting)
        gather_columns_native(native, torch.ones(12, 3), width, (3, 3), meeting)
        return meeting.state

    failed = [int(state[1]) for state in ranks.run(step)]
    assert failed == ([0, 0] if reports == 1 else [OTHER_SUM, OTHER_SUM])


@pytest.mark.parametrize("ended", [False, True])
def test_a_rank_that_waits_alone_gives_up(ended: bool) -> None:
    """After its limit, or as soon as the word is set; later collectives do not wait at all."""
    ranks = Ranks(2, limit_s=1e4 if ended else 0.05)
    native, meeting = ranks.natives[0], ranks.meetings[0]

    def wait() -> None:
        for _ in range(2):
            all_reduce_native(native, torch.ones(1), meeting)

    thread = threading.Thread(target=wait)
    thread.start()
    if ended:
        wait_until(lambda: meeting.state[0])  # it waits
        ranks.shared[END_WORD] = 1
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert meeting.state.tolist() == [1, 1]
