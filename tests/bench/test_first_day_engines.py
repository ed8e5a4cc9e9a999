"""The engines of the first day with a GPU: their faults are noticed, here on a CPU."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from baton.bench.gpu.first_day.capture import fault_of
from baton.bench.gpu.first_day.checked_model import CheckedModel, CheckedStep
from baton.bench.gpu.first_day.eager_channel import EagerChannel
from baton.bench.gpu.first_day.errors import hanging_step, lost_device, no_memory
from baton.bench.gpu.first_day.fences import Mix, options_for, run_mix
from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.first_day.same_tokens import differing
from baton.bench.gpu.models import FEW_LAYERS, write_config
from baton.bench.gpu.parts import GpuRun, Line, Part, Task
from baton.core.errors import StoppedError
from baton.core.finish import FinishReason, Usage
from baton.core.logprobs import TokenLogprob
from baton.engine.layout.layout import AttentionShape, PageLayout, RecurrentShape, SlotLayout
from baton.engine.loop import EngineLoop
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.replay.static_step import StaticStep
from baton.engine.request.events import RequestFinished
from baton.engine.request.output import Output
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.step.layer_progress import OnLayers
from baton.engine.step.model import Model


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
    finished = RequestFinished("a", FinishReason.LENGTH, Usage(1, len(tokens)))
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
