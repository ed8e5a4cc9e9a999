"""Regular looks at the members of a running cluster."""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace

from ray.exceptions import RayError

from baton.deploy.client.router_client import RouterClient
from baton.deploy.cluster.actor_process import ActorProcess, LifeEnd
from baton.deploy.cluster.actor_processes import processes_of
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.disk_space import full_disk
from baton.deploy.cluster.life_ends import read_ends
from baton.deploy.cluster.member_state import MemberState, MemberView, changes, view_of
from baton.deploy.cluster.running_changes import RunningChanges
from baton.deploy.cluster.spoilt_starts import SpoiltStarts
from baton.deploy.errors import NotRunning, RouterRefused

_ASK_S = 2.0
"""Seconds from one question to the routers to the next, and for which a router may be silent."""
_FREED_S = 5.0
"""The time that Ray takes to free what an ended process had, and more."""
_BUSY = (429, 503)
"""The HTTP statuses of a router that has no connection to spare for our address, or is stopping."""


class MemberWatch:
    """The members' states at the last look, and the changes since the one before.

    Ray is asked at every look: it knows at once when a process or host ends. Routers, which know
    which workers answer, are asked less often.
    """

    def __init__(self, cluster: Cluster, running: RunningChanges | None = None) -> None:
        """running: the requests that stop and restart members; None: there are none."""
        self._cluster = cluster
        self._running = running or RunningChanges()
        self._lock = threading.Lock()
        self._views: dict[str, MemberView] = {}
        self._processes: dict[str, ActorProcess] = {}
        self._heard: dict[str, int] = {}  # pids of those that answered the last question
        self._served: dict[str, int] = {}  # pids of those that have ever answered
        self._lacking: dict[str, str] = {}  # why those without a process have no place
        self._lacking_since: dict[str, float] = {}
        self._ends: dict[str, LifeEnd] = {}  # by actor id
        self._ask_at = 0.0
        self._full = ""  # that the disk of Ray's logs is full
        self._spoilt = SpoiltStarts()

    def changes(self) -> list[str]:
        """Look again, and describe what has changed since the last look. None before the first."""
        with self._lock:
            before = self._views
            self._look()
            return changes(before, self._views) if before else []

    def start_spoilt_again(self) -> list[str]:
        """End the processes that were started on a full disk, once it has room again, for Ray to
        start others. Return a line for each."""
        with self._lock:
            away = {name for name, each in self._processes.items() if self._stays_away(name, each)}
            running = [name for name in away if _has_place(self._processes[name])]
            again = self._spoilt.look(away, running, time.monotonic(), full=bool(self._full))
            for each in self._cluster.handles:
                if each.name in again:
                    each.restart()
        return [
            f"{name}: its process was started while the disk was full and cannot serve; Ray starts "
            "another"
            for name in again
        ]

    def describe(self) -> dict[str, dict[str, object]]:
        """Return each member's `MemberView` now, by name."""
        with self._lock:
            self._look()
            return {name: asdict(view) for name, view in sorted(self._views.items())}

    def _look(self) -> None:
        processes = self._processes = processes_of(self._cluster.handles, self._processes)
        died = any(self._heard.get(name) != process.pid for name, process in processes.items())
        if died or time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _ASK_S
            self._heard = self._ask()
            self._served |= self._heard
            self._lacking = self._ask_for_room()
            with suppress(RayError):  # the control store is away: what was known stays
                self._ends = read_ends({each.actor_id for each in self._cluster.handles})
        revoked, under_way = self._cluster.revoked, self._running.under_way()
        ids = {each.name: each.actor_id for each in self._cluster.handles}
        self._views = {
            name: replace(
                self._view(name, process, self._ends.get(ids.get(name, ""))),
                revoked=name in revoked,
                changing=under_way.get(name, ""),
            )
            for name, process in processes.items()
        }

    def _view(self, name: str, process: ActorProcess, end: LifeEnd | None) -> MemberView:
        view = view_of(process, self._heard.get(name), self._served.get(name), end)
        waits = view.state in (MemberState.STARTING, MemberState.RESTARTING)
        return replace(view, lacks=self._lacking.get(name, "") if waits else "")

    def _stays_away(self, name: str, process: ActorProcess) -> bool:
        """Return whether a later life of a member than its first does not serve yet."""
        silent = process.pid not in (self._heard.get(name), self._served.get(name))
        return process.restarts > 0 and process.state != "DEAD" and silent

    def _ask_for_room(self) -> dict[str, str]:
        """Return what is missing to place each member that has no process."""
        lacking = {}
        full = self._full = full_disk(self._cluster.logs)
        now = time.monotonic()
        away = {name for name, each in self._processes.items() if not _has_place(each)}
        self._lacking_since = {k: since for k, since in self._lacking_since.items() if k in away}
        for each in self._cluster.handles:
            if each.name not in away:
                process = self._processes.get(each.name)
                if full and process is not None and self._stays_away(each.name, process):
                    lacking[each.name] = full
                continue
            # Ray frees a little later what a process had that has ended.
            since = self._lacking_since.setdefault(each.name, now)
            lacks = full or (each.lacks() if now - since >= _FREED_S else "")
            if lacks:
                lacking[each.name] = lacks
        return lacking

    def _ask(self) -> dict[str, int]:
        """Return the pids of the routers that answer, and of the workers that these hear.

        While no router answers, nobody knows which workers do: those of the last answer count.
        """
        routers = self._cluster.routers
        answers = [
            _ask_one(name, client, self._heard)
            for name, client in zip(routers.names, routers.clients, strict=True)
        ]
        heard: dict[str, int] = {}
        for answer in answers:
            heard |= answer or {}
        if all(answer is None for answer in answers):
            names = set(routers.names)
            return {name: pid for name, pid in self._heard.items() if name not in names}
        return heard


def _has_place(process: ActorProcess) -> bool:
    """Return whether a process runs, or none is to run."""
    return process.state in ("ALIVE", "DEAD")


def _ask_one(name: str, client: RouterClient, before: Mapping[str, int]) -> dict[str, int] | None:
    """Return the pids that a router tells; None if it does not answer.

    before: the pids of the last answers. They count for a router that is too busy to say more.
    """
    try:
        info = client.server_info(_ASK_S)
    except RouterRefused as err:
        return dict(before) if err.http_status in _BUSY else None
    except NotRunning:
        return None
    workers = {each["worker_id"]: int(each["pid"]) for each in info["workers"]}
    return workers | {name: int(info["router"]["pid"])}
