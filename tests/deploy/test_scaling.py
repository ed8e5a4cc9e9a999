"""Tests of a cluster's membership, and of the requests that change it while it runs."""

import json
import os
import random
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from deploy.wired import wired

from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.deploy.cluster.change_requests import ScaleRequest, parse_counts
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.errors import DeployError, NotRunning, ScaleError, StartError
from baton.deploy.messages.control import Handler, ask, listening, request_line
from baton.deploy.messages.start_progress import Silent, StartProgress
from baton.deploy.process import memory_budget
from baton.deploy.process.memory_budget import MemoryBudget
from baton.engine.settings.config import EngineConfig


class Heard(Silent):
    """A record of the reported progress, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def update(self, part: str, phase: str, fraction: float) -> None:
        self.lines.append((part, phase))

    def done(self, part: str, detail: str) -> None:
        self.lines.append((part, detail))


def test_ranks_are_numbered_through_all_groups() -> None:
    config = ClusterConfig(EngineConfig(Path("m")), prefill=2, decode=2, decode_dp=3)
    wiring = wired(config)
    ranks = [member for member in config.members if member.role is Role.DECODE]
    assert [member.worker_id for member in ranks] == [f"decode-{i}" for i in range(6)]
    told = [wiring.worker(member) for member in ranks]
    assert [(w.dp_group, w.dp_rank) for w in told] == [(i // 3, i) for i in range(6)]
    assert {wiring.worker(m).worker_id for m in config.members} == {
        *(w.worker_id for w in told), "prefill-0", "prefill-1",
    }  # fmt: skip
    with pytest.raises(StartError, match="--decode-dp is 0"):
        ClusterConfig(EngineConfig(Path("m")), decode_dp=0)


def test_counts_are_read_and_what_is_wrong_is_named() -> None:
    assert parse_counts(("decode=4", "prefill=2")) == {"decode": 4, "prefill": 2}
    for words, wrong in (
        (("decode",), "'decode' is not"),
        (("decode=-1",), "'decode=-1' is not"),
        (("both=1",), "'both=1' is not"),
        (("decode=1", "decode=2"), "decode is given twice"),
        ((), "name a role"),
    ):
        with pytest.raises(ValueError, match=wrong):
            parse_counts(words)


def test_a_scale_request_arrives_as_it_was() -> None:
    request = ScaleRequest({"decode": 4, "prefill": 2}, 1.5)
    assert ScaleRequest.parse(json.loads(json.dumps(request.arguments))) == request


def test_a_request_is_answered_and_progress_told_meanwhile(tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []

    def handle(request: Mapping[str, Any], progress: StartProgress) -> Mapping[str, Any]:
        seen.append(request)
        progress.update("decode-2", "weights", 0.5)
        progress.done("decode-2", "ready")
        return {"decode": ["decode-2"]}

    number = random.randrange(1000)
    with listening(tmp_path / "s", {"grow": handle}, ProcessSupervisor()):
        heard = Heard()
        assert ask(tmp_path / "s", "grow", {"n": number}, heard) == {"decode": ["decode-2"]}
    assert seen == [{"n": number}]
    assert heard.lines == [("decode-2", "weights"), ("decode-2", "ready")]
    with pytest.raises(NotRunning, match="no `baton serve` answers"):
        ask(tmp_path / "s", "grow", {}, Silent())


def test_what_is_wrong_reaches_who_asked_and_others_are_answered_on(tmp_path: Path) -> None:
    busy, free = threading.Event(), threading.Event()

    def handle(request: Mapping[str, Any], progress: StartProgress) -> Mapping[str, Any]:
        if request["slow"]:
            busy.set()
            assert free.wait(60)
            return {}
        raise ScaleError("decode=0; a cluster needs at least one of each role")

    with listening(tmp_path / "s", {"do": handle}, ProcessSupervisor()):
        slow = threading.Thread(target=ask, args=(tmp_path / "s", "do", {"slow": True}, Silent()))
        slow.start()
        assert busy.wait(60)
        with pytest.raises(DeployError, match="at least one of each role"):
            ask(tmp_path / "s", "do", {"slow": False}, Silent())
        free.set()
        slow.join(60)
        assert not slow.is_alive()


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (request_line("grow", {}), "no request 'grow'; it has do, scale"),
        (b"{}\n", "expected one line of JSON"),
        (b'["do"]\n', "expected one line of JSON"),
        (b'{"request": ["do"], "arguments": {}}\n', "no request"),
        (b'{"request": "do", "arguments": [1]}\n', "arguments of do must be an object"),
        (b"\xff\n", "expected one line of JSON"),
        (request_line("scale", {"counts": {"both": 1}, "drain_s": 1}), "scale takes counts"),
        (request_line("scale", {"counts": {"decode": 1.5}, "drain_s": 1}), "scale takes counts"),
        (request_line("scale", {"counts": {"decode": 1}, "drain_s": -1}), "scale takes counts"),
    ],
)
def test_a_wrong_request_is_answered_with_what_is_wrong(
    line: bytes, wrong: str, tmp_path: Path
) -> None:
    def parse(arguments: Mapping[str, Any], progress: StartProgress) -> Mapping[str, Any]:
        return ScaleRequest.parse(arguments).arguments

    handlers: dict[str, Handler] = {"do": lambda *_: {}, "scale": parse}
    with (
        listening(tmp_path / "s", handlers, ProcessSupervisor()),
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.settimeout(60)
        connection.connect(str(tmp_path / "s"))
        connection.sendall(line)
        assert wrong in json.loads(connection.makefile().readline())["error"]


def test_one_who_asks_and_goes_does_not_end_what_was_asked_for(tmp_path: Path) -> None:
    gone, ended = threading.Event(), threading.Event()

    def handle(request: Mapping[str, Any], progress: StartProgress) -> Mapping[str, Any]:
        assert gone.wait(60)
        for _ in range(1000):
            progress.update("decode-2", "weights", 0.5)
        ended.set()
        return {}

    with listening(tmp_path / "s", {"do": handle}, ProcessSupervisor()):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "s"))
            connection.sendall(request_line("do", {}))
        gone.set()
        assert ended.wait(60)


def test_a_worker_that_joins_gets_no_memory_that_others_were_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rss = psutil.Process().memory_info().rss
    free = 10 * rss
    monkeypatch.setattr(memory_budget, "available_memory", lambda device: free)
    shares = MemoryBudget()
    shares.add("a", 4 * rss)
    shares.add("b", 3 * rss)
    mine = {"a": os.getpid()}  # has taken about 1 of its 4; b nothing of its 3
    left = shares.left(mine)
    assert 3.5 * rss < left <= 4 * rss, "no more than another has"
    free = 7 * rss
    assert 0.5 * rss < shares.left(mine) < 1.5 * rss
    free = 2 * rss
    assert shares.left(mine) == 0
    free = 8 * rss  # a is to take 4 more, b 4, and the new one a tier of 1
    assert shares.left(mine, beside=rss) == 0
    free = 12 * rss
    assert 2.5 * rss < shares.left(mine, beside=rss) < 3.5 * rss
    shares.remove("b")
    free = 7 * rss
    assert shares.left(mine) > 3.5 * rss
