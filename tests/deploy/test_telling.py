"""Tests of the output for people: progress, changes among the workers, the status table,
timings."""

import io
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, Group

from baton.deploy.client.router_client import RouterClient
from baton.deploy.cluster import actor_processes
from baton.deploy.cluster.actor_process import ActorProcess, LifeEnd
from baton.deploy.cluster.disk_space import full_disk
from baton.deploy.cluster.member_state import MemberState, MemberView, changes, complaint, view_of
from baton.deploy.cluster.running_changes import RunningChanges
from baton.deploy.commands.status import status
from baton.deploy.errors import NotRunning
from baton.deploy.messages.start_progress import Silent
from baton.deploy.terminal.member_lines import render_changes, render_complaints, render_start
from baton.deploy.terminal.progress import Lines, shown
from baton.deploy.terminal.status_table import _lag, render
from baton.deploy.terminal.timings_line import first_token, second_token

# What click gives to `status` besides `--watch`.
STATUS: dict[str, Any] = {
    "url": "http://127.0.0.1:1",
    "interval": 1.0,
    "json_wanted": False,
    "api_key": "",
    "cacert": None,
    "cluster": None,
}


def _console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200), out


def test_a_pipe_gets_one_line_a_phase_and_part() -> None:
    console, out = _console()
    with shown(console) as progress:
        assert isinstance(progress, Lines)
        for fraction in (0.1, 0.2, 0.9):
            progress.update("decode-0", "weights", fraction)
        progress.update("prefill-0", "weights", 0.5)
        progress.done("decode-0", "ready after 1.0 s")
    lines = [line.split(" s  ", 1)[1].split() for line in out.getvalue().splitlines()]
    assert lines == [
        ["decode-0", "weights"],
        ["prefill-0", "weights"],
        ["decode-0", "ready", "after", "1.0", "s"],
    ]


def test_a_terminal_gets_bars() -> None:
    out = io.StringIO()
    with shown(Console(file=out, force_terminal=True, width=100)) as progress:
        progress.update("decode-0", "weights", 0.5)
        progress.done("decode-0", "ready")
    assert "decode-0" in out.getvalue() and "ready" in out.getvalue()


def _life(
    state: str = "ALIVE", pid: int = 5, restarts: int = 0, *, lost: bool = False
) -> ActorProcess:
    return ActorProcess(state, pid, restarts, "10.0.0.3", "n3", lost)


@pytest.mark.parametrize(
    ("life", "heard", "served", "state"),
    [
        (_life("PENDING_CREATION", 0), None, None, MemberState.STARTING),
        (_life(), None, None, MemberState.STARTING),
        (_life(), 5, 5, MemberState.SERVING),
        (_life(), None, 5, MemberState.LATE),
        (_life("RESTARTING", 0, 1), None, 5, MemberState.RESTARTING),
        (_life("RESTARTING", 0, 1), 5, 5, MemberState.RESTARTING),  # routers do not know yet
        (_life(pid=6, restarts=1), 5, 5, MemberState.RESTARTING),
        (_life(pid=6, restarts=1), None, None, MemberState.RESTARTING),  # died as it started
        (_life(pid=6, restarts=1), 6, 6, MemberState.SERVING),
        (_life("DEAD"), 5, 5, MemberState.ENDED),
    ],
)
def test_a_process_that_is_late_is_told_from_one_that_died(
    life: ActorProcess, heard: int | None, served: int | None, state: MemberState
) -> None:
    assert view_of(life, heard, served).state is state


def test_the_last_end_of_a_member_is_told_until_a_later_life_ends_otherwise() -> None:
    reason = "grants ended: ValueError: out of range"
    end = LifeEnd(0, reason)
    again, served = _life("RESTARTING", 0, 1), _life(pid=6, restarts=1)
    for life, heard, line in (
        (again, None, f"d: {reason}; Ray starts it again"),
        (served, 6, f"d serves again; its life before: {reason}"),
        (_life("DEAD"), None, f"d has ended, and Ray does not start it again: {reason}"),
        (_life("RESTARTING", 0, 2), None, "d: its process has died; Ray starts it again"),
        (_life(pid=7, restarts=2), 7, ""),
    ):
        view = view_of(life, heard, 5, end)
        assert complaint("d", view) == line
        lines = render_complaints({"d": asdict(view)})
        assert [str(each) for each in lines] == ([line] if line else [])
    before = MemberView(MemberState.SERVING)
    (told,) = changes({"d": before}, {"d": view_of(again, None, 5, end)})
    assert told == f"d: {reason}; Ray starts it again"
    (told,) = changes({"d": before}, {"d": view_of(served, 6, 5, end)})
    assert told == f"d: {reason}, and Ray has started it again"


def test_changes_of_members_are_told_once_each() -> None:
    serving = MemberView(MemberState.SERVING)
    late = MemberView(MemberState.LATE)
    died = MemberView(MemberState.RESTARTING, 1)
    again = MemberView(MemberState.SERVING, 1)
    away = MemberView(MemberState.RESTARTING, 1, "10.0.0.3", host_lost=True)
    starting = MemberView(MemberState.STARTING)
    lost = "d asks for 1 CPU, and no node has that: node 10.0.0.2 has 4 CPU, 0 free"
    full = replace(away, lacks=lost)
    for before, after, line in (
        (serving, serving, None),
        (serving, late, "d is late: its process runs, but does not answer"),
        (late, late, None),
        (late, serving, "d answers again"),
        (serving, died, "d: its process has died; Ray starts it again"),
        (died, died, None),
        (late, died, "d: its process has died; Ray starts it again"),
        (died, again, "d was started again and serves"),
        (serving, again, "d: its process has died, and Ray has started it again"),
        (serving, away, "d: its host 10.0.0.3 is lost; Ray starts it again"),
        (
            serving,
            full,
            "d: its host 10.0.0.3 is lost; Ray starts it again once a node has room: " + lost,
        ),
        (away, full, f"d has no room: {lost}"),
        (full, full, None),
        (full, away, None),
        (starting, serving, "d is here"),
        (serving, MemberView(MemberState.ENDED), "d has ended, and Ray does not start it again"),
    ):
        assert changes({"d": before}, {"d": after}) == ([] if line is None else [line])
    assert changes({}, {"d": starting}) == ["d is starting"]
    assert changes({"d": serving, "e": serving}, {"e": serving}) == ["d has left"]


def test_a_revoked_member_is_neither_late_nor_started_again() -> None:
    gone = "d is gone: its certificate was revoked. `baton scale` adds another worker"
    before = MemberView(MemberState.SERVING)
    for state in (MemberState.LATE, MemberState.RESTARTING, MemberState.ENDED):
        now = MemberView(state, 1, lacks="no room", revoked=True)
        assert changes({"d": before}, {"d": now}) == [gone]
        assert complaint("d", now) == gone


def test_a_member_that_is_restarted_by_request_is_neither_late_nor_dead() -> None:
    """Each phase of the restart is told once, and the end of it as for any other."""
    states = [
        MemberView(MemberState.SERVING),
        MemberView(MemberState.LATE, changing="draining, for 5 s at most"),
        MemberView(MemberState.LATE, changing="draining, for 5 s at most"),
        MemberView(MemberState.LATE, changing="starts again"),
        MemberView(MemberState.RESTARTING, 1, lacks="no room", changing="starts again"),
        MemberView(MemberState.SERVING, 1),
    ]
    told = [changes({"d": was}, {"d": now}) for was, now in pairwise(states)]
    assert told == [
        ["d: draining, for 5 s at most"],
        [],
        ["d: starts again"],
        [],
        ["d was started again and serves"],
    ]
    assert not any(complaint("d", view) for view in states)
    left_late = replace(states[1], changing="")
    assert changes({"d": states[2]}, {"d": left_late}) == [
        "d is late: its process runs, but does not answer"
    ]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    assert full_disk(tmp_path) == full_disk(tmp_path / "nowhere") == ""
    text = full_disk(tmp_path, least_bytes=1 << 60)
    assert text.startswith(f"the disk of {tmp_path} is full (")
    died = MemberView(MemberState.RESTARTING, 1)
    assert changes({"d": died}, {"d": replace(died, lacks=text)}) == [f"d has no room: {text}"]


def test_status_says_who_died_is_late_or_starts_and_nothing_of_those_who_serve() -> None:
    views = {
        "decode-0": MemberView(MemberState.SERVING),
        "decode-1": MemberView(MemberState.RESTARTING, 1),
        "decode-2": MemberView(MemberState.STARTING),
        "decode-3": MemberView(MemberState.RESTARTING, 1, "10.0.0.3", host_lost=True),
        "decode-4": MemberView(MemberState.STARTING, lacks="decode-4 asks for 1 GPU, and so on"),
        "router-0": MemberView(MemberState.LATE),
    }
    members = json.loads(json.dumps({name: asdict(view) for name, view in views.items()}))
    console, out = _console()
    console.print(Group(*render_complaints(members)))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "decode-1: its process has died; Ray starts it again",
        "decode-2 is starting",
        "decode-3: its host 10.0.0.3 is lost; Ray starts it again",
        "decode-4 is starting: decode-4 asks for 1 GPU, and so on",
        "router-0 is late: its process runs, but does not answer",
    ]


def test_the_host_of_a_lost_process_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray forgets it as soon as it has no place for the process."""
    row = {"State": "ALIVE", "Pid": 7, "NumRestarts": 0,
           "Address": {"IPAddress": "10.0.0.3", "NodeID": "n3"}}  # fmt: skip
    nodes = [{"NodeID": "n2", "Alive": False}, {"NodeID": "n3", "Alive": True}]
    monkeypatch.setattr(actor_processes.ray_private, "actor_rows", lambda: {"a": row})
    monkeypatch.setattr(actor_processes.ray, "nodes", lambda: nodes)
    actors: Any = [SimpleNamespace(name="decode-0", actor_id="a")]
    before = actor_processes.processes_of(actors)
    assert before == {"decode-0": ActorProcess("ALIVE", 7, 0, "10.0.0.3", "n3", host_lost=False)}
    row |= {"State": "RESTARTING", "Pid": 0, "NumRestarts": 1,
            "Address": {"IPAddress": "", "NodeID": ""}}  # fmt: skip
    nodes[1]["Alive"] = False
    after = actor_processes.processes_of(actors, before)
    assert after == {"decode-0": ActorProcess("RESTARTING", 0, 1, "10.0.0.3", "n3", host_lost=True)}
    assert actor_processes.processes_of(actors, after) == after


def test_status_says_how_far_a_change_is() -> None:
    running = RunningChanges()
    with running.kept("scale", Silent()) as progress:
        progress.update("decode-2", "weights", 0.4)
        progress.update("decode-3", "process", 0.0)
        progress.done("decode-3", "ready after 1.0 s")
        told = json.loads(json.dumps(running.describe()))
    assert running.describe() == []
    console, out = _console()
    console.print(Group(*render_changes(told)))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "scale: decode-2 weights, 40%",
        "scale: decode-3 ready after 1.0 s",
    ]


def test_status_of_a_cluster_that_starts_says_how_far_it_is() -> None:
    told = {
        "name": "one", "phase": "starting", "http_url": "http://127.0.0.1:8000",
        "parts": {"router-0": "ready after 1.0 s", "decode-0": "weights, 40%"}, "members": {},
    }  # fmt: skip
    console, out = _console()
    console.print(render_start(told))
    head, router, decode = (line.rstrip() for line in out.getvalue().splitlines())
    assert head == "one is starting  http://127.0.0.1:8000"
    assert router.split(maxsplit=1) == ["router-0", "ready after 1.0 s"]
    assert decode.split(maxsplit=1) == ["decode-0", "weights, 40%"]


def _info(workers: int = 1) -> dict[str, Any]:
    """Return a router's `/server_info` with so many workers, all alike."""
    worker = {
        "worker_id": "decode-0", "role": "decode", "state": "draining", "dp_group": 1,
        "heard_s": 0.2, "lag_ms": 3.21,
        "uptime_s": 75.0, "running": 3, "max_running": 16, "waiting": 2, "incarnation": 0xAB_CDEF01,
        "slots": {"free": 12, "live": 3, "ticket": 0}, "pages": {"free": 7, "live": 1},
        "handoffs": {"writing": 2, "complete": 40},
        "channels": {"decode-0": "nixl: the first of ours", "decode-1": ""},
        "shortages": {}, "settings": {"mamba_full_memory_ratio": 0.9},
    }  # fmt: skip
    router = {"model": "m", "policy": "round_robin", "uptime_s": 3700.0, "active": 5,
              "capacity": 16, "queued": 1}  # fmt: skip
    named = [worker | {"worker_id": f"decode-{number}"} for number in range(workers)]
    return {"router": router, "workers": named}


def test_the_status_table_counts_ranks_where_there_are_several() -> None:
    info = _info(2)
    info["workers"][1] = info["workers"][1] | {"rank_pids": [7, 8]}
    console, out = _console()
    console.print(render(info))
    assert out.getvalue().count("decode, 2 ranks") == out.getvalue().count("ranks") == 1


@pytest.mark.parametrize("width", [200, 40])
def test_the_status_names_the_devices_of_all_ranks(width: int) -> None:
    info = _info(3)
    devices = ["cuda:0 (GPU 4)", "cuda:1 (GPU 5)"]
    info["workers"][0] |= {"rank_devices": devices, "rank_pids": [7, 8]}
    info["workers"][1] |= {"rank_devices": ["cpu", "cpu"], "rank_pids": [9, 10]}
    out = io.StringIO()
    Console(file=out, width=width).print(render(info))
    assert [out.getvalue().count(name) for name in (*devices, "cpu")] == [1, 1, 1]


def test_the_status_table_names_owners_that_own_something() -> None:
    console, out = _console()
    console.print(render(_info()))
    text = out.getvalue()
    assert "requests 5 of 16, queued 1" in text and "1h01m" in text and "1m15s" in text
    assert "12 free" in text and "3 live" in text and "ticket" not in text
    assert "2 writing" in text and "complete" not in text and "nixl" in text
    assert "3.2ms" in text and "silent" not in text
    assert "cdef01" in text and "draining 1m15s" in text
    assert "wait here" not in text


def test_the_status_says_which_prompts_a_rank_would_compute_itself() -> None:
    info = _info(workers=2)
    info["workers"][1]["prefill_here_tokens"] = 12345
    console, out = _console()
    console.print(render(info))
    assert out.getvalue().count("12,345") == 1 and "prefills" in out.getvalue()


def test_the_status_says_what_waits_at_the_router_and_for_how_long() -> None:
    for rate, said in (
        (0.0, "; 3 wait here with 4,500 tokens"),
        (50.0, "; 3 wait here with 4,500 tokens, 1m30s of work"),
    ):
        info = _info()
        info["router"] |= {"waiting": 3, "waiting_tokens": 4500, "drain_tokens_per_s": rate}
        console, out = _console()
        console.print(render(info))
        line = next(line for line in out.getvalue().splitlines() if "wait here" in line)
        assert line.rstrip().endswith(said)


@pytest.mark.parametrize("width", [200, 110, 80, 40, 12])
def test_status_says_all_of_it_at_any_width(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(render(_info(workers=3)))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    said = " ".join(" ".join(lines).replace("─", "").split())
    for fact in ("requests 5 of 16, queued 1", "decode-0", "decode-2", "3.2ms", "cdef01", "nixl"):
        assert fact in said, fact
    for fact in ("12 free", "3 live", "7 free", "1 live", "2 writing", "draining 1m15s"):
        assert said.count(fact) == 3, fact
    assert "…" not in said


@pytest.mark.parametrize(
    ("shortages", "ratio", "told"),
    [
        ({"slots": 0.9, "pages": 0.1}, 0.5,
         "short of slots (90% of recent evictions); --mamba-full-memory-ratio is 0.5"),
        ({"slots": 0.2, "pages": 0.8}, 1.5,
         "short of pages (80% of recent evictions); --mamba-full-memory-ratio is 1.5"),
        ({"slots": 0.0, "pages": 1.0}, 0.0, "short of pages (100% of recent evictions)"),
    ],
)  # fmt: skip
def test_status_says_what_the_prefix_cache_is_short_of(
    shortages: dict[str, float], ratio: float, told: str
) -> None:
    info = _info(workers=2)
    info["workers"][1]["shortages"] = shortages
    info["workers"][1]["settings"] = {"mamba_full_memory_ratio": ratio}
    console, out = _console()
    console.print(render(info))
    lines = [line.rstrip() for line in out.getvalue().splitlines() if "prefix cache" in line]
    assert lines == [f"decode-1: the prefix cache is {told}"]


@pytest.mark.parametrize(
    ("tier", "own", "told"),
    [
        ("host_tier", {"saving": 2, "loading": 1}, "host memory: 1.50 of 4.00 GiB in use"),
        (
            "file_tier", {"files": 1234, "writing": 2, "reading": 1},
            "files: 1.50 of 4.00 GiB in 1,234",
        ),
    ],
)  # fmt: skip
def test_status_says_what_a_workers_tiers_have(tier: str, own: dict[str, int], told: str) -> None:
    info = _info(workers=2)
    info["workers"][0][tier] = None
    info["workers"][1][tier] = own | {
        "used_bytes": 3 << 29, "total_bytes": 4 << 30, "hit_tokens": 12345,
    }  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=200).print(render(info))
    lines = [line.rstrip() for line in out.getvalue().splitlines() if "tokens spared" in line]
    assert lines == [
        f"decode-1: {told}, 12,345 prompt tokens spared; prefixes on their way: 2 there, 1 back"
    ]


def test_status_names_slow_links() -> None:
    info = _info(workers=2)
    links = {"link_bytes_per_s": 2.5e9, "slow_links": {"decode-1": 3e6, "decode-7": 4.25e7}}
    info["workers"][0] |= links
    console, out = _console()
    console.print(render(info))
    lines = [line.rstrip() for line in out.getvalue().splitlines() if "links" in line]
    told = "slow links: MB/s 3.0 to decode-1, 42.5 to decode-7; 2,500.0 to the others"
    assert lines == [f"decode-0: {told}"]


@pytest.mark.parametrize("columns", ["20", "500"])
def test_status_in_a_pipe_is_as_wide_as_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(RouterClient, "server_info", lambda _: _info(workers=2))
    assert status.callback is not None
    status.callback(watch=False, **STATUS)
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    assert head.split()[:5] == ["worker", "role", "device", "group", "state"]
    assert {len(row) for row in rows} == {len(head)}
    assert [row.split()[0] for row in rows if "3/16" in row] == ["decode-0", "decode-1"]


def test_watching_goes_on_when_the_router_is_away_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: Iterator[dict[str, Any] | BaseException] = iter(
        [_info(1), NotRunning("no router answers"), _info(2), KeyboardInterrupt()]
    )

    def look(_: RouterClient) -> dict[str, Any]:
        seen = next(looks)
        if isinstance(seen, BaseException):
            raise seen
        return seen

    monkeypatch.setattr(RouterClient, "server_info", look)
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert status.callback is not None
    with pytest.raises(KeyboardInterrupt):
        status.callback(watch=True, **STATUS)
    assert "decode-1" in capsys.readouterr().out


def test_status_of_what_is_no_router_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RouterClient, "server_info", lambda _: {"internal_states": []})
    assert status.callback is not None
    with pytest.raises(NotRunning, match="no router of this version: it says nothing of 'router'"):
        status.callback(watch=False, **STATUS)


@pytest.mark.parametrize(
    ("heard_s", "lag_ms", "told"), [(0.4, 12_340.0, "12.3s"), (2.5, 12_340.0, "silent 2.5s")]
)
def test_the_status_table_tells_who_lags_and_who_is_silent(
    heard_s: float, lag_ms: float, told: str
) -> None:
    assert str(_lag({"heard_s": heard_s, "lag_ms": lag_ms})) == told


def test_a_timings_line_adds_up_what_it_names() -> None:
    timings = {
        "ttft_us": 31_000, "router_queue_us": 200, "prefill_queue_us": 800, "prefill_us": 29_000,
        "delivery_us": 400, "network_us": 600, "transfer_us": 3_000, "decode_wait_us": 100,
        "first_decode_step_us": 9_000,
    }  # fmt: skip
    assert first_token(timings) == (
        "first token 31.0 ms = queues 0.2+0.8, prefill 29.0, delivery 0.4, network 0.6"
    )
    assert second_token(timings) == "second token 12.1 ms = transfer 3.0, wait 0.1, step 9.0"
