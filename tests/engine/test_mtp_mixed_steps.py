"""Steps that verify drafts of the MTP layer beside other rows: tokens and log probabilities are
those of plain decoding, and drafts those of a row by itself.
"""

from collections.abc import Sequence

import pytest
import torch
from engine.engines import greedy, run, step_until
from engine.test_mtp_acceptance import GRID, load
from engine.test_mtp_drafts import Guessed, assert_same, assert_same_guesses, taken
from mtp_models import TRAINED

from baton.engine.engine import Engine
from baton.engine.request.events import Event
from baton.engine.request.request import Request, RequestSpec
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.drafter import Drafter
from baton.engine.step.batch import Batch, Row
from baton.engine.step.drafts import NO_DRAFTS, Drafts
from engine import test_mtp_drafts
from mtp.language import HELD_OUT, text

CHUNK = 32
LONG, SHORT = 200, 24

guessed = test_mtp_drafts.guessed
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
every_family = pytest.mark.parametrize("family", TRAINED)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Record the steps of every engine from now on."""
    found: list[Batch] = []
    plan = Scheduler.plan

    def recorded(scheduler: Scheduler, outbox: list[Event]) -> Batch | None:
        batch = plan(scheduler, outbox)
        if batch is not None:
            found.append(batch)
        return batch

    monkeypatch.setattr(Scheduler, "plan", recorded)
    return found


def asked(number: int, prompt: int, tokens: int) -> RequestSpec:
    ids = text(HELD_OUT + number, prompt).ids
    return RequestSpec(f"r{number}", ids, greedy(tokens, logprobs=3))


def verifying(batch: Batch) -> list[Row]:
    return [row for row in batch.decoding if row.guesses]


def answers(
    engine: Engine, first: Sequence[RequestSpec], then: Sequence[RequestSpec]
) -> list[Event]:
    """Answers to requests, the latter of which come when the former decode."""
    for spec in first:
        engine.submit(spec)
    asked_first = {spec.request_id for spec in first}
    events = step_until(engine, lambda new: asked_first <= {event.request_id for event in new})
    for spec in then:
        engine.submit(spec)
    return events + run(engine)


@every_family
@both_dtypes
def test_a_first_verification_beside_a_chunk_of_a_long_prompt(
    family: str, dtype: torch.dtype, batches: list[Batch]
) -> None:
    """See vllm issue 55894: there such a row took the way of prompts."""
    options = {"dtype": dtype, "chunked_prefill_size": CHUNK, "max_model_len": 2 * LONG}
    first, then = [asked(0, SHORT, 40)], [asked(1, LONG, 20), asked(2, SHORT, 40)]
    off = {"mtp": False, "speculative_algorithm": SpeculativeAlgorithm.OFF}
    plain = answers(load(family, **options, **off), first, then)
    batches.clear()
    engine = load(family, **options)
    assert_same([*first, *then], plain, answers(engine, first, then))
    beside = [row for batch in batches if batch.prompts for row in verifying(batch)]
    assert any(row.position == 1 for row in beside), "a first verification"
    assert len(beside) > 3
    assert sum(engine.counters.drafts_accepted) > 20


@every_family
@both_dtypes
def test_a_plain_row_beside_rows_that_verify(
    family: str, dtype: torch.dtype, batches: list[Batch]
) -> None:
    """The second of two tokens has no drafts behind it."""
    first, then = [asked(0, SHORT, 60), asked(1, SHORT, 60)], [asked(n, SHORT, 2) for n in (2, 3)]
    off = {"mtp": False, "speculative_algorithm": SpeculativeAlgorithm.OFF}
    plain = answers(load(family, dtype=dtype, **off), first, then)
    batches.clear()
    assert_same([*first, *then], plain, answers(load(family, dtype=dtype), first, then))
    mixed = [b for b in batches if verifying(b) and any(not r.verifies for r in b.decoding)]
    assert mixed


@every_family
def test_a_row_behind_a_snapshot_of_its_own_drafts_from_it(
    family: str, batches: list[Batch], guessed: Guessed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain row that is tracked leaves its states in the snapshot's slot alone. It is plain where
    no page is left for drafts; here, by a drafter that has none at the grid."""
    drafts = Drafter.drafts

    def none_at_the_grid(drafter: Drafter, request: Request, most: int) -> Drafts:
        at_grid = (request.lengths.computed + 1) % GRID == 0
        return NO_DRAFTS if at_grid else drafts(drafter, request, min(most, to_grid(request) - 1))

    def to_grid(request: Request) -> int:
        """Tokens up to which a row is no longer than the one before the grid."""
        return GRID - 1 - request.lengths.computed % GRID

    monkeypatch.setattr(Drafter, "drafts", none_at_the_grid)
    specs = [asked(n, SHORT + n, 160) for n in range(4)]
    wanted = answers(load(family, prefix_caching=False, overlap=False), specs, [])
    untracked = taken(guessed)
    batches.clear()
    found = answers(load(family, overlap=False), specs, [])
    assert_same(specs, wanted, found)
    behind = [row for b in batches for row in verifying(b) if row.read_slot != row.write_slot]
    assert len(behind) >= len(specs)
    ends = {row.start + 1 for row in behind}
    untracked = {ids: drafts for ids, drafts in untracked.items() if len(ids) in ends}
    assert_same_guesses(untracked, taken(guessed), len(behind))
