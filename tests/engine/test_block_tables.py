"""The device's block tables follow every page that a request gains, swaps or hands on."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from engine.engines import (
    assert_clean,
    finish_of,
    greedy,
    make_engine,
    random_prompt,
    run,
    step_or_fail,
    tokens_of,
)
from engine.hash_model import VOCAB, HashModel, expected_tokens
from engine.test_races import jittered
from torch import Tensor

from baton.core.errors import InvariantError
from baton.engine.engine import Engine
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.memory.table_changes import NO_ENTRIES, TableChanges, TableEntries
from baton.engine.request.request import Request, RequestSpec
from baton.engine.schedule.donations import Donations
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.recurrent_index import RecurrentIndex
from baton.engine.stream.forward_stream import ThreadStream
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan

ANSWER = 60  # tokens: over several pages, and past depths at which rows take snapshots


@pytest.fixture
def swaps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows whose pages were swapped for the cache's, one an occasion."""
    found: list[int] = []
    swap = Donations._swap

    def counted(self: Donations, request: Request, first: int, pages: tuple[int, ...]) -> None:
        found.append(request.table_row)
        swap(self, request, first, pages)

    monkeypatch.setattr(Donations, "_swap", counted)
    return found


def twins(rng: random.Random, count: int) -> list[RequestSpec]:
    """Requests with few prompts among them, none of which is cached when they begin."""
    prompts = [tuple(rng.randrange(VOCAB) for _ in range(length)) for length in (41, 24)]
    return [
        RequestSpec(f"t{n}", rng.choice(prompts), greedy(rng.randint(ANSWER // 2, ANSWER)))
        for n in range(count)
    ]


def answers(engine: Engine, specs: Iterable[RequestSpec]) -> dict[str, list[int]]:
    specs = list(specs)
    for spec in specs:
        engine.submit(spec)
    events = run(engine)
    assert all(finish_of(events, spec.request_id).error is None for spec in specs)
    return {spec.request_id: tokens_of(events, spec.request_id) for spec in specs}


@pytest.mark.parametrize("pages", [15, 28, 200])
@pytest.mark.parametrize("overlap", [False, True])
def test_twins_computed_at_once_share_pages_and_answer_alike(
    seeded: random.Random, swaps: list[int], pages: int, overlap: bool
) -> None:
    """Each row's own pages are swapped under it while it decodes, and soon hold other tokens."""
    stream = ThreadStream(jittered(seeded)) if overlap else None
    engine = make_engine(
        pages=pages, max_running=6, chunk=256, canary=True, overlap=overlap, stream=stream
    )
    for _ in range(2):
        specs = twins(seeded, 14)
        found = answers(engine, specs)
        for spec in specs:
            expected = expected_tokens(HashModel(), spec.prompt_ids, spec.sampling.max_tokens)
            assert found[spec.request_id] == expected
        engine.flush_cache()
    assert swaps, "no two requests computed one prefix at the same time"
    engine.close()
    assert_clean(engine)


def test_a_decode_step_sends_appended_pages_and_nothing_else(seeded: random.Random) -> None:
    engine = make_engine(prefix_caching=False, max_running=3, chunk=256)
    for number in range(3):
        prompt = tuple(seeded.randrange(VOCAB) for _ in range(8 * number + 3))
        engine.submit(RequestSpec(str(number), prompt, greedy(30)))
    sent: list[int] = []
    while engine.has_work:
        engine.plan_step()
        sent += [len(batch.entries.places) for batch in engine._steps.batches[-1:]]
        engine.run_step()
    assert sent[0] == 1 + 2 + 3, "admission sends whole rows"
    # All prompts end three tokens into a page, so all rows grow in the same steps.
    assert set(sent[1:]) == {0, 3} and sum(sent[1:]) == 3 * 3


def test_a_swapped_entry_that_is_not_sent_is_noticed(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Donations,
        "_swap",
        lambda self, request, first, pages: request.pages.__setitem__(
            slice(first, first + len(pages)), pages
        ),
    )
    engine = make_engine(pages=30, max_running=6, chunk=256, canary=True)
    with pytest.raises(InvariantError, match=r"read page \d+, which should hold its first"):
        answers(engine, twins(seeded, 20))


def test_an_appended_entry_that_is_sent_late_is_noticed(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [NO_ENTRIES]
    take = TableChanges.take

    def one_step_late(self: TableChanges, rows: set[int]) -> TableEntries:
        entries = take(self, rows)
        if len(entries.places) != 1:  # the whole row of the admission
            return entries
        late.append(entries)
        return late.pop(0)

    monkeypatch.setattr(TableChanges, "take", one_step_late)
    engine = make_engine(chunk=256, canary=True)
    engine.submit(RequestSpec("a", (5,) * 20, greedy(30)))
    with pytest.raises(AssertionError, match="a real token writes the padding page"):
        run(engine)


class Unplanned(HashModel):
    """A model whose plan raises once where it is told to, and the pages that it writes."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        if self.fails:
            self.fails = False
            raise RuntimeError("the plan was told to fail")
        return super().plan(host, decode_rows, snapshots)

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        self.written.update(batch.token_pages.tolist())
        return super().forward(batch, states, pages)


def test_a_step_that_cannot_be_packed_leaves_others_pages_alone(seeded: random.Random) -> None:
    """Rows of its requests are in the step after it already, and write where the tables say."""

    model = Unplanned()
    engine = make_engine(model, stream=ThreadStream(), max_running=1, chunk=64)
    answers(engine, [RequestSpec("a", random_prompt(seeded, 56), greedy(9))])
    # The second request has the row of the first, whose pages are the cache's now.
    engine.submit(RequestSpec("b", random_prompt(seeded, 41, 46), greedy(9)))
    model.fails, model.written = True, set()
    events = []
    while engine.has_work:
        events += step_or_fail(engine)
    assert "told to fail" in str(finish_of(events, "b").error)
    assert model.written and model.written.isdisjoint(engine._pools.cache.tree.owned()[0])
    engine.close()


def test_entries_of_a_row_that_waits_stay_until_its_next_step() -> None:
    changes = TableChanges(width=10)
    changes.note(1, 0, [5, 6])
    changes.note(2, 3, [7])
    changes.note(1, 1, [8])
    sent = changes.take({1})
    assert dict(zip(*sent[:2], strict=True)) == {10: 5, 11: 8}
    assert changes.take({1}) == NO_ENTRIES
    assert dict(zip(*changes.take({1, 2})[:2], strict=True)) == {23: 7}


def test_a_row_that_has_changed_hands_sends_its_new_requests_entries_alone() -> None:
    changes = TableChanges(width=10)
    changes.note(1, 0, [5, 6, 7])
    changes.forget(1)
    changes.note(1, 0, [9])
    assert dict(zip(*changes.take({1})[:2], strict=True)) == {10: 9}


def test_no_more_requests_are_reserved_for_than_the_tables_have_rows() -> None:
    engine = make_engine(max_running=2, tickets=2)
    spec = RequestSpec("", (1, 2, 3), greedy(5), output_ids=(4,))
    for number in range(4):
        reservation = engine.reserve(str(number), 3)
        assert reservation is not None
        engine.adopt(replace(spec, request_id=str(number)), reservation)
    assert engine.reserve("4", 3) is None
    run(engine)
    reservation = engine.reserve("4", 3)
    assert reservation is not None
    engine.reservations.abandon(reservation)
    assert_clean(engine)
