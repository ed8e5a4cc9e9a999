"""Collectives over torch's process groups: the same in processes over gloo and, where there are two
GPUs, over NCCL, captured in a CUDA graph too; and the ends of waits for ranks that do not come."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest
import torch
from torch import Tensor

from baton.core.errors import RankError
from baton.engine.assembly import leading_model
from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.collectives.comm import Shard
from baton.engine.collectives.group_comm import GroupComm

TWO_GPUS = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed"),
    ],
)
RANKS = 2
PROCESS = Path(__file__).parents[1] / "comm_process.py"


@pytest.fixture(scope="module", params=["cpu", TWO_GPUS])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Findings of each rank; see `comm_process`."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROCESS), str(rank), str(RANKS), request.param, str(folder)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        for rank in range(RANKS)
    ]
    try:
        assert [rank.wait(300) for rank in ranks] == [0] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def test_all_ranks_get_the_same_bits_of_the_sum(found: list[Any]) -> None:
    for ours, theirs in zip(*(each["parts"] for each in found), strict=True):
        assert not torch.equal(ours, theirs), "each rank has a part of its own"
    sums = [ours + theirs for ours, theirs in zip(*(each["parts"] for each in found), strict=True)]
    for each in found:
        for name in ("sums", "replayed"):
            assert all(map(torch.equal, each[name], sums)), name


def test_the_first_rank_gathers_and_is_heard(found: list[Any]) -> None:
    first, second = found
    assert torch.equal(first["gathered"], torch.cat([first["columns"], second["columns"]], dim=1))
    assert torch.equal(second["heard"], first["told"]) and torch.equal(
        first["heard"], first["told"]
    )


class FakeGroup:
    """A process group whose collectives stand on the caller's stream, so that they have no work."""

    def __init__(self) -> None:
        self.waits: list[bool] = []
        self.aborted = False

    def allreduce(self, tensors: list[Tensor], options: Any) -> None:
        self.waits.append(options.asyncOp)

    broadcast = allreduce

    def gather(self, found: list[list[Tensor]], own: list[Tensor], options: Any) -> None:
        self.waits.append(options.asyncOp)

    def abort(self) -> None:
        self.aborted = True


def test_collectives_stand_on_the_callers_stream() -> None:
    group = FakeGroup()
    comm = GroupComm(group, Shard(1, 2), 1.0)
    x = torch.ones(3, 2)
    assert comm.all_reduce(x) is x and comm.broadcast(x) is x and comm.gather(x, [2, 2]) is x
    assert group.waits == [False] * 3
    comm.end()
    assert group.aborted


class NeverDone:
    """A step for which a rank does not come."""

    def result(self, timeout: float | None = None) -> Never:
        assert timeout is not None
        time.sleep(min(timeout, 0.01))  # as long as was asked for, or less
        raise TimeoutError


def leading(followers: SimpleNamespace, group: FakeGroup) -> LeadingModel:
    """A leader on a GPU, as far as it knows."""
    followers.device = torch.device("cuda", 0)
    followers.weight_bytes = lambda: 0
    part: Any = SimpleNamespace(weight_bytes=0)
    whole: Any = None
    ranks: Any = followers
    comm: Any = GroupComm(group, Shard(0, 2), 1.0)
    return LeadingModel(whole, part, comm, ranks)


def test_a_step_on_devices_ends_when_a_rank_is_lost() -> None:
    group = FakeGroup()
    followers = SimpleNamespace(lost=RankError("rank 1 is lost"), timeout_s=3600.0)
    with pytest.raises(RankError, match="rank 1 is lost"):
        leading(followers, group).result(NeverDone(), 3600.0)
    assert group.aborted, "the device waits for ever"


def test_a_step_on_devices_ends_at_the_ranks_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    group, told = FakeGroup(), []

    def failure(error: Exception) -> RankError:
        told.append(str(error))
        return RankError(str(error))

    monkeypatch.setattr(leading_model, "_ASK_S", 0.01)
    followers = SimpleNamespace(lost=None, timeout_s=0.1, failure=failure)
    with pytest.raises(RankError, match=r"have not finished a step in 0\.1 s"):
        leading(followers, group).result(NeverDone(), 3600.0)
    assert group.aborted and len(told) == 1
