"""The regular looks at members, with stand-ins for Ray and for the routers."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.deploy.cluster import member_watch
from baton.deploy.cluster.actor_process import ActorProcess
from baton.deploy.cluster.member_watch import MemberWatch
from baton.deploy.errors import NotRunning, RouterRefused

BUSY = RouterRefused("answers 429", 429)
GONE = NotRunning("no router answers")
MISSING = RouterRefused("answers 404", 404)


class Stand:
    """A cluster of one router, which answers as it is told, and one worker."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: NotRunning | None = None
        self.processes = {
            "router-0": ActorProcess("ALIVE", 1, 0, "127.0.0.1", "n", False),
            "decode-0": ActorProcess("ALIVE", 2, 0, "127.0.0.1", "n", False),
        }
        self.lacks = "decode-0 asks for 1 CPU, and no node has that"
        self.restarted: list[str] = []
        handles = [
            SimpleNamespace(
                name=name,
                actor_id=name,
                lacks=lambda: self.lacks,
                restart=partial(self.restarted.append, name),
            )
            for name in self.processes
        ]
        routers = SimpleNamespace(names=["router-0"], clients=[self])
        cluster: Any = SimpleNamespace(
            handles=handles, routers=routers, revoked=frozenset[str](), logs=folder
        )
        monkeypatch.setattr(member_watch, "processes_of", lambda *_: dict(self.processes))
        monkeypatch.setattr(member_watch, "read_ends", lambda _: {})
        monkeypatch.setattr(member_watch, "_ASK_S", 0.0)  # each look asks
        self.watch = MemberWatch(cluster)
        self.watch.changes()  # the first look, which has nothing to compare with

    def server_info(self, deadline_s: float) -> dict[str, Any]:
        if self.answer is not None:
            raise self.answer
        return {"router": {"pid": 1}, "workers": [{"worker_id": "decode-0", "pid": 2}]}


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (None, []),
        (BUSY, []),
        (GONE, ["router-0 is late: its process runs, but does not answer"]),
        (MISSING, ["router-0 is late: its process runs, but does not answer"]),
    ],
)
def test_workers_are_not_called_late_for_a_router_that_says_nothing(
    stand: Stand, answer: NotRunning | None, lines: list[str]
) -> None:
    stand.answer = answer
    assert stand.watch.changes() == lines
    assert stand.watch.changes() == []
    stand.answer = None
    back = ["router-0 answers again"] if lines else []
    assert stand.watch.changes() == back


def test_no_room_is_said_once_ray_has_had_time_to_free_what_ended(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.processes["decode-0"] = ActorProcess("RESTARTING", 0, 1, "127.0.0.1", "n", False)
    assert stand.watch.changes() == ["decode-0: its process has died; Ray starts it again"]
    assert stand.watch.changes() == []
    monkeypatch.setattr(member_watch, "_FREED_S", 0.0)
    assert stand.watch.changes() == [f"decode-0 has no room: {stand.lacks}"]


def test_a_full_disk_of_logs_is_said_of_a_worker_that_does_not_come_back(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_watch, "full_disk", lambda folder: f"the disk of {folder} is full")
    stand.processes["decode-0"] = ActorProcess("RESTARTING", 0, 1, "127.0.0.1", "n", False)
    (line,) = stand.watch.changes()
    assert "Ray starts it again once a node has room: the disk of" in line


def test_what_was_started_on_a_full_disk_is_started_again_when_that_has_room(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray calls it alive, but it never answers."""
    monkeypatch.setattr(member_watch, "full_disk", lambda _: "the disk is full")
    stand.processes["decode-0"] = ActorProcess("ALIVE", 3, 1, "127.0.0.1", "n", False)
    (line,) = stand.watch.changes()
    assert line == (
        "decode-0: its process has died; Ray starts it again once a node has room: the disk is full"
    )
    assert stand.watch.start_spoilt_again() == [] == stand.restarted
    monkeypatch.setattr(member_watch, "full_disk", lambda _: "")
    assert stand.watch.describe()["decode-0"]["lacks"] == ""
    (line,) = stand.watch.start_spoilt_again()
    assert line.startswith("decode-0: its process was started while the disk was full")
    assert stand.watch.start_spoilt_again() == [] and stand.restarted == ["decode-0"]


@pytest.mark.parametrize(
    "process",
    [
        ActorProcess("ALIVE", 3, 0, "127.0.0.1", "n", False),  # its first life: a start waits
        ActorProcess("ALIVE", 2, 1, "127.0.0.1", "n", False),  # it serves
        ActorProcess("DEAD", 3, 1, "127.0.0.1", "n", False),
    ],
)
def test_a_full_disk_does_not_end_other_processes(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, process: ActorProcess
) -> None:
    monkeypatch.setattr(member_watch, "full_disk", lambda _: "the disk is full")
    stand.processes["decode-0"] = process
    stand.watch.changes()
    assert stand.watch.describe()["decode-0"]["lacks"] == ""
    stand.watch.start_spoilt_again()
    monkeypatch.setattr(member_watch, "full_disk", lambda _: "")
    stand.watch.changes()
    assert stand.watch.start_spoilt_again() == [] == stand.restarted
