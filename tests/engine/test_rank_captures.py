"""Captured steps hold collectives: all ranks capture the same ones, in one order."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.engine.assembly import follower
from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.collectives.comm import SingleComm
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.step.forward_batch import Window
from baton.engine.step.kept_inputs import windows

CPU = torch.device("cpu")


class NotedModel(GraphedModel):
    """A rank's model that notes the windows whose steps it is to capture."""

    def __init__(self) -> None:
        part: Any = SimpleNamespace(weight_bytes=0, config=None)
        super().__init__(part, 1, lambda forward: pytest.fail("nothing runs here"))
        self.noted: list[list[int]] = []

    def capture(self, states: Any, pages: Any, tables: Any, windows: Sequence[Window] = ()) -> None:
        self.noted.append([window.tokens for window in windows])


@pytest.mark.parametrize("most", [1, 2, 4, 8])
def test_followers_capture_what_the_leader_does(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    ranks: Any = SimpleNamespace(device=CPU, weight_bytes=lambda: 0, send=sent.append)
    ours, theirs = NotedModel(), NotedModel()
    unused: Any = None
    comm: Any = SingleComm()
    leader = LeadingModel(unused, ours, comm, ranks)
    leader.capture(unused, unused, torch.zeros(1, 1), windows((), most))
    monkeypatch.setattr(follower, "mapped_pools", lambda *_: (None, None))
    monkeypatch.setattr(follower, "kept_inputs", lambda *_: ())
    sizes: Any = SimpleNamespace(table_rows=1, table_width=1, kept_tokens=0, trees=False)
    messages = iter(sent)

    def recv() -> Any:
        try:
            return next(messages)
        except StopIteration:
            raise EOFError from None

    connection: Any = SimpleNamespace(recv=recv, send=lambda report: None)
    with pytest.raises(EOFError):
        follower.run_steps(connection, theirs, comm, unused, sizes, CPU)
    expected = [tokens for tokens in (2, 4, 8) if tokens <= most]
    assert ours.noted == theirs.noted == [expected]
