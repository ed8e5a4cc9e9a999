"""The engines of the first day with a GPU: their faults are noticed, here on a CPU."""

import os
import signal
import threading
from dataclasses import replace

import pytest

from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.first_day.same_tokens import differing
from baton.bench.gpu.parts import GpuRun, Line, Part, Task
from baton.core.finish import FinishReason, Usage
from baton.core.logprobs import TokenLogprob
from baton.engine.request.events import RequestFinished
from baton.engine.request.output import Output


def lines_of(work, most_s: float = 60.0) -> list[Line]:
    run = GpuRun(dry=True, budget_s=60.0)
    run.part(Task("part", work, most_s))
    return run.lines


# Where a process with threads is forked, Python 3.12 warns; the run's own has none.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_row_that_raises_dies_or_hangs_costs_its_own_line() -> None:
    def work(part: Part) -> None:
        rows = {
            "good": lambda: part.add("good", "ok"),
            "raises": lambda: {}["absent"],
            "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "hangs": lambda: threading.Event().wait(),
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
