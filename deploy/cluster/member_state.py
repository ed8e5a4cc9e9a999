"""The state of each member of a cluster: what Ray knows of its process, and what routers hear."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from baton.deploy.cluster.actor_process import ActorProcess, LifeEnd


class MemberState(StrEnum):
    STARTING = "starting"  # never served yet
    SERVING = "serving"
    LATE = "late"  # its process runs, and does not answer
    RESTARTING = "restarting"  # its process has died; Ray starts another
    ENDED = "ended"  # Ray starts no other


@dataclass(frozen=True)
class MemberView:
    state: MemberState
    restarts: int = 0
    host: str = ""
    host_lost: bool = False
    lacks: str = ""  # the reason why no node has room for it; empty where it has a place
    revoked: bool = False  # its certificate counts no more
    changing: str = ""  # what a request does with it now, as a restart; empty: nothing
    ended: str = ""  # why its last life ended by itself; empty where that is not known


def view_of(
    process: ActorProcess, heard_pid: int | None, served_pid: int | None, end: LifeEnd | None = None
) -> MemberView:
    """Return the state of a member.

    heard_pid: the process that answers now; None if none does. served_pid: the last one that did.
    end: the last of its lives that is known to have ended by itself.
    """
    # Later ones may have been ended by others.
    ended = end.reason if end is not None and end.life >= process.restarts - 1 else ""
    state = _state(process, heard_pid, served_pid)
    return MemberView(state, process.restarts, process.host, process.host_lost, ended=ended)


def _state(process: ActorProcess, heard_pid: int | None, served_pid: int | None) -> MemberState:
    if process.state == "DEAD":
        return MemberState.ENDED
    if process.state == "ALIVE" and heard_pid == process.pid:
        return MemberState.SERVING
    if served_pid is None and process.restarts == 0:
        return MemberState.STARTING
    if process.state == "ALIVE" and served_pid == process.pid:
        return MemberState.LATE
    return MemberState.RESTARTING


def complaint(name: str, view: MemberView) -> str:
    """Say what is wrong with a member, or was with its last life; empty where nothing was, and
    for one that a request stops or restarts.
    """
    if view.changing:
        return ""
    if view.state is MemberState.SERVING:
        return f"{name} serves again; its life before: {view.ended}" if view.ended else ""
    if view.state is MemberState.STARTING:
        return f"{name} is starting" + (f": {view.lacks}" if view.lacks else "")
    return _trouble(name, view)


def changes(before: Mapping[str, MemberView], after: Mapping[str, MemberView]) -> list[str]:
    """Describe the changes between two looks at the members, by name."""
    lines = [f"{name} has left" for name in before if name not in after]
    for name, now in after.items():
        line = _change(name, before.get(name), now)
        if line:
            lines.append(line)
    return lines


def _change(name: str, was: MemberView | None, now: MemberView) -> str:
    if was is None:
        return f"{name} is {now.state}"
    if now.state is MemberState.SERVING:
        if was.restarts != now.restarts and was.state is MemberState.SERVING and not now.changing:
            return f"{name}: {_death(now)}, and Ray has started it again"
        back = _BACK[MemberState.RESTARTING] if was.restarts != now.restarts else ""
        return (back or _BACK.get(was.state, "")).format(name=name)
    if now.changing:
        return "" if was.changing == now.changing else f"{name}: {now.changing}"
    if was.state is now.state and was.restarts == now.restarts and not was.changing:
        return f"{name} has no room: {now.lacks}" if now.lacks and not was.lacks else ""
    return _trouble(name, now)


def _trouble(name: str, view: MemberView) -> str:
    if view.revoked:
        return f"{name} is gone: its certificate was revoked. `baton scale` adds another worker"
    if view.state is MemberState.RESTARTING:
        why = f"its host {view.host} is lost" if view.host_lost else _death(view)
        when = f" once a node has room: {view.lacks}" if view.lacks else ""
        return f"{name}: {why}; Ray starts it again{when}"
    why = f": {view.ended}" if view.state is MemberState.ENDED and view.ended else ""
    return _AWAY.get(view.state, "").format(name=name) + why


def _death(view: MemberView) -> str:
    return view.ended or "its process has died"


_BACK = {
    MemberState.STARTING: "{name} is here",
    MemberState.LATE: "{name} answers again",
    MemberState.RESTARTING: "{name} was started again and serves",
}
_AWAY = {
    MemberState.LATE: "{name} is late: its process runs, but does not answer",
    MemberState.ENDED: "{name} has ended, and Ray does not start it again",
}
