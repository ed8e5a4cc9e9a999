"""The engines of the first day with a GPU: their faults are noticed, here on a CPU."""

import os
import signal
import threading
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import cast

import pytest
import torch
from engine.hash_model import hash_config
from torch import Tensor

from baton.bench.checkpoints import write_checkpoint
from baton.bench.gpu.first_day.capture import fault_of
from baton.bench.gpu.first_day.checked_model import DEPTH, CheckedModel, CheckedStep
from baton.bench.gpu.first_day.eager_channel import EagerChannel
from baton.bench.gpu.first_day.errors import hanging_step, lost_device, no_memory
from baton.bench.gpu.first_day.fences import Mix, options_for, run_mix
from baton.bench.gpu.first_day.fp8_files import quantise, scaled
from baton.bench.gpu.first_day.host_tier import recalled, tiered
from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.first_day.same_tokens import differing
from baton.bench.gpu.models import FEW_LAYERS, small_config, write_config
from baton.bench.gpu.parts import GpuRun, Limits, Line, Part, Task
from baton.core.errors import StoppedError
from baton.core.finish import End, FinishReason, Usage
from baton.core.logprobs import TokenLogprob
from baton.engine.assembly.loader import check_weights, declared_weights, open_checkpoint
from baton.engine.layout.layout import AttentionShape, PageLayout, RecurrentShape, SlotLayout
from baton.engine.loop import EngineLoop
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.family_table import read_config
from baton.engine.replay.static_draft import StaticDraft
from baton.engine.replay.static_step import StaticStep
from baton.engine.request.events import RequestFinished
from baton.engine.request.output import Output
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.step.layer_progress import OnLayers
from baton.engine.step.model import Model
from baton.engine.tiers.host_tier import HostTier


def lines_of(work, most_s: float = 60.0) -> list[Line]:
    run = GpuRun(dry=True, budget_s=60.0)
    run.part(Task("part", work, most_s))
    return run.lines


# Where a process with threads is forked, Python 3.12 warns; the run's own has none.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_row_that_raises_dies_or_hangs_costs_its_own_line() -> None:
    def work(part: Part) -> None:
        def raises() -> None:
            raise KeyError("absent")

        def hangs() -> None:
            threading.Event().wait()

        rows = {
            "good": lambda: part.add("good", "ok"),
            "raises": raises,
            "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "hangs": hangs,
        }
        side_by_side(part, rows)

    lines = {line.what: line for line in lines_of(work, most_s=3.0)}
    assert lines.keys() == {"good", "raises", "dies", "hangs"}
    assert not lines["good"].failed
    assert lines["raises"].failed and "KeyError" in lines["raises"].beside
    assert lines["dies"].failed and lines["dies"].value == "ended with -9"
    assert lines["hangs"].failed and lines["hangs"].value == "stopped"


def output(*tokens: tuple[int, float, float]) -> Output:
    """Return an answer of tokens, each with its log probability and the next best's distance."""
    finished = RequestFinished("a", End(FinishReason.LENGTH), Usage(1, len(tokens)))
    scored = tuple(
        TokenLogprob(token, best, (token, 0), (best, best - gap)) for token, best, gap in tokens
    )
    return Output("a", tuple(token for token, _, _ in tokens), scored, (), finished)


def test_answers_that_differ_are_told_from_ties() -> None:
    expected = output((5, -1.0, 0.5), (6, -1.0, 1e-6), (7, -1.0, 0.5))
    assert differing([expected], [expected]) == ("", 0.0, 0)
    near = output((5, -1.0 + 1e-5, 0.5), (9, -1.0, 1e-6), (3, -1.0, 0.5))
    fault, worst, ties = differing([near, expected], [expected, expected])
    assert (fault, ties) == ("", 1) and worst == pytest.approx(1e-5)
    other = output((4, -1.0, 0.5), (6, -1.0, 1e-6), (7, -1.0, 0.5))
    assert differing([expected, other], [expected] * 2)[0] == "answer 1: OTHER TOKEN at 0"
    far = output((5, -1.0, 0.5), (6, -1.0, 1e-6), (7, -1.001, 0.5))
    assert differing([far], [expected])[0].startswith("answer 0: FAR by 1e-03 at 2")
    lost = output((5, float("nan"), 0.5), (6, -1.0, 1e-6), (7, -1.0, 0.5))
    assert "FAR" in differing([lost], [expected])[0]
    short = replace(expected, token_ids=(5, 6), logprobs=expected.logprobs[:2])
    assert differing([short], [expected])[0] == "answer 0: 2 TOKENS"


class Stub:
    """A model that adds one to each slot and page, and returns the first slot but the padding."""

    def __init__(self, leaks: bool) -> None:
        self._leaks = leaks

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        for pool in (states, pages):
            pool.storage[1:] += 1
        padding = states.storage[0].clone() if self._leaks else 0
        return (states.storage[1] + padding).float()[None].expand(batch.rows, -1)


def checked(leaks: bool = False, fault: str = "") -> CheckedModel:
    """Return a checked model after a step of three requests, which has room for four."""
    device = torch.device("cpu")
    shape = RecurrentShape((2, 3), None)
    states = StatePool(SlotLayout((shape,), torch.float32, torch.float32), 3, device)
    pages = PagePool(PageLayout((AttentionShape(1, 2),), 4, torch.float32), 3, device)

    def capture(forward):
        result = forward().clone()

        def replay() -> None:
            result.copy_(forward())
            if fault == "logits":
                result[1] += 1
            elif fault == "states":
                states.storage[2] += 1
            elif fault == "pages":
                pages.storage[1, 5] += 1

        return replay, result

    model = CheckedModel(cast(Model, Stub(leaks)), 4, capture)
    tables = torch.zeros((4, 2), dtype=torch.int32)
    model.capture(states, pages, tables)
    model.watched = True
    model.forward(StaticStep.of(3, tables, has_initial=False).batch, states, pages)
    assert list(model.steps) == [CheckedStep(4, 3, 0, commit=False)]
    return model


@pytest.mark.parametrize("fault", ["", "logits", "states", "pages"])
def test_a_captured_step_with_other_bits_is_noticed(fault: str) -> None:
    assert len(checked(fault=fault).faults) == bool(fault)


def test_a_row_that_sees_the_padding_slot_is_noticed() -> None:
    assert len(checked(leaks=True).faults) == 1


def test_captured_steps_that_no_request_came_to_are_told() -> None:
    model = checked()
    assert fault_of(model, running=4, window=1) == "NOT CHECKED: [(1, 0, False), (2, 0, False)]"
    for size in (1, 2):
        model.steps[CheckedStep(size, size, 0, commit=False)] += 1
    assert fault_of(model, running=4, window=1) == ""
    model.steps[CheckedStep(4, 4, 0, commit=False)] += 1
    del model.steps[CheckedStep(4, 3, 0, commit=False)]
    assert fault_of(model, running=4, window=1) == "NOT CHECKED: a padding row in 4"


CPU = torch.device("cpu")


def goes_on(loop: EngineLoop) -> None:
    """Take the place of a loop's step: any error is its step's."""
    loop._report(loop._engine.plan_step())
    try:
        loop._report(loop._engine.run_step())
    except Exception as error:
        loop._report(loop._engine.fail_step(error))


def gives_up(loop: EngineLoop) -> None:
    """Take the place of a loop's step: any error ends the loop."""
    loop._report(loop._engine.plan_step())
    loop._report(loop._engine.run_step())


@pytest.mark.parametrize("row", [lost_device, no_memory, hanging_step])
def test_a_sound_engine_does_as_it_should(row) -> None:
    assert row(CPU)[0] == ""


@pytest.mark.parametrize("row", [lost_device, hanging_step])
def test_an_error_that_ends_requests_is_noticed(row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineLoop, "_step", goes_on)
    assert row(CPU)[0] == "A REQUEST ENDED"


def test_missing_memory_that_ends_the_engine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineLoop, "_step", gives_up)
    with pytest.raises((torch.OutOfMemoryError, StoppedError)):  # by what is asked of it first
        no_memory(CPU)


def mixed(folder: Path, listening=lambda told: told) -> Mix:
    path = write_config(folder / "model", FEW_LAYERS[0], small=True)
    return run_mix(options_for(path, CPU), listening)


def test_a_channel_that_keeps_to_what_it_is_told_finds_all_in_order(tmp_path: Path) -> None:
    assert mixed(tmp_path).fault == ""


def test_a_channel_that_reads_layers_too_early_is_noticed(tmp_path: Path) -> None:
    def ahead(told: OnLayers) -> OnLayers:
        return lambda computed: told(
            [replace(each, attention=each.attention + 1) for each in computed]
        )

    mix = mixed(tmp_path, ahead)
    assert mix.fault.startswith("READ TOO EARLY") and 0 < mix.early < mix.copies


def test_bytes_that_change_under_a_ticket_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = EagerChannel.write_noise

    def overwritten(channel: EagerChannel, reservation) -> None:
        write(channel, reservation)
        channel._pages.storage[reservation.owned[-1], -1] ^= 1

    monkeypatch.setattr(EagerChannel, "write_noise", overwritten)
    assert mixed(tmp_path).fault.startswith("WRITTEN UNDER A TICKET")


def test_a_state_that_was_not_moved_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EagerChannel, "move", lambda channel, parked, reservation: None)
    assert mixed(tmp_path).fault.startswith("OTHER TOKENS")


def tier_part() -> Part:
    _, sender = Pipe(duplex=False)
    return Part(sender, Limits(), dry=True, until=0)


def test_answers_are_the_same_once_their_prompts_came_back_from_the_host() -> None:
    with closing(tiered(FEW_LAYERS[0], tier_part(), small=True)) as engine:
        fault, told = recalled(engine)
    assert fault == "" and "tokens of 290 from the host" in told


def test_bytes_that_are_lost_on_the_way_to_the_host_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HostBytes, "put", lambda *_: None)
    with closing(tiered(FEW_LAYERS[0], tier_part(), small=True)) as engine:
        fault = recalled(engine)[0]
    assert "OTHER TOKEN" in fault or "FAR" in fault


def test_a_tier_that_keeps_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostTier, "kept", lambda *_, **__: None)
    with closing(tiered(FEW_LAYERS[0], tier_part(), small=True)) as engine:
        assert recalled(engine)[0] == "NOTHING CAME BACK"


@pytest.mark.parametrize("shape", [(50, 70), (3, 50, 70)])
@pytest.mark.parametrize("block", [(32, 48), (1, 70)])
def test_fp8_numbers_times_their_scales_are_the_weights(
    shape: tuple[int, ...], block: tuple[int, int]
) -> None:
    weight = torch.randn(shape)
    values, scales = scaled(weight, block)
    rows, columns = block
    assert scales.shape == (*shape[:-2], -(-50 // rows), -(-70 // columns))
    each = scales.repeat_interleave(rows, -2).repeat_interleave(columns, -1)[..., :50, :70]
    torch.testing.assert_close(values.float() * each, weight, rtol=2**-4, atol=1e-2)


@pytest.mark.parametrize("block", [(32, 48), None])
def test_a_checkpoint_that_was_quantised_is_read_as_fp8(
    tmp_path: Path, block: tuple[int, int] | None
) -> None:
    folder = write_checkpoint(tmp_path / "model", small_config(FEW_LAYERS[1]))
    model = read_config(folder, torch.float32, torch.float32)
    needed = declared_weights(model).shapes
    before = {name: open_checkpoint(model).tensor(name, needed[name]).clone() for name in needed}
    count = quantise(folder, block)
    model = read_config(folder, torch.float32, torch.float32)
    checkpoint = open_checkpoint(model)
    check_weights(model, checkpoint)
    assert len(checkpoint.quantised) == count > 10
    for name, weight in before.items():
        found = checkpoint.tensor(name, needed[name])
        assert torch.equal(found, weight) == (name not in checkpoint.quantised), name
        torch.testing.assert_close(found, weight, rtol=2**-4, atol=1e-2)


def drafting(fault: str = "") -> tuple[CheckedModel, Tensor]:
    """Return a checked model of drafts after a depth of three rows, and their hidden states."""

    class Drafts(Stub):
        config = replace(hash_config(), mtp=True)

        def hidden_before(self, states: StatePool, slots: Tensor) -> Tensor:
            return torch.zeros(len(slots), 5)

        def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
            pages.storage[1:] += 1
            return DraftResult(batch.hidden * 2, batch.hidden + 1)

    device = torch.device("cpu")
    states = StatePool(
        SlotLayout((RecurrentShape((2, 3), None),), torch.float32, torch.float32), 3, device
    )
    pages = PagePool(PageLayout((AttentionShape(1, 2),), 4, torch.float32), 3, device)
    tables = torch.zeros((8, 2), dtype=torch.int32)
    inputs: list[DraftBatch] = []

    def capture(forward):
        result = forward().clone()

        def replay() -> None:
            result.copy_(forward())
            if fault == "logits":
                result[1] += 1
            elif fault == "hidden" and inputs:
                inputs[0].hidden[1] += 1
            elif fault == "pages":
                pages.storage[1, 5] += 1

        return replay, result

    model = CheckedModel(cast(Model, Drafts(False)), 8, capture)
    hidden = torch.randn(3, 5)
    batch = StaticDraft.of(3, tables, hidden).batch
    batch.hidden.copy_(hidden)
    model.draft(batch, states, pages)
    inputs.append(model._drafts[4].inputs.batch)
    model.watched = True
    given = batch.hidden.clone()
    found = model.draft(batch, states, pages)
    assert list(model.steps) == [CheckedStep(4, 3, DEPTH, commit=False)]
    assert torch.equal(found.logits[0], 2 * given[0])
    model.draft(replace(batch, hidden=found.hidden), states, pages)
    return model, found.hidden


@pytest.mark.parametrize("fault", ["", "logits", "hidden", "pages"])
def test_a_captured_depth_of_drafts_with_other_bits_is_noticed(fault: str) -> None:
    model, hidden = drafting(fault)
    assert len(model.faults) == 2 * bool(fault)
    assert hidden.data_ptr() == model._drafts[4].inputs.batch.hidden.data_ptr()


def test_depths_that_were_not_checked_are_told() -> None:
    model = checked()
    for size in (1, 2, 4):
        model.steps[CheckedStep(size, 1, 0, commit=False)] += 1
    assert fault_of(model, running=4, window=1) == ""
    assert fault_of(model, running=4, window=1, drafts=True) == (
        "NOT CHECKED: [(1, 1, False), (2, 1, False)]"
    )
