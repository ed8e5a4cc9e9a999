"""Messages to the operator of `baton serve` when a worker dies and comes back."""

import time
from collections.abc import Collection, Mapping

from rich.console import Console

from baton.deploy.cluster.cluster import Cluster
from baton.deploy.errors import NotRunning
from baton.deploy.process.stop_signal import StopWanted

_LOOK_S = 2.0
ROUTER = "router"


def watch_workers(console: Console, cluster: Cluster) -> None:
    """Print changes until a signal arrives. Ray does the restarting.

    Raises RayLostError when it no longer can.
    """
    try:
        seen = _incarnations(cluster)
        while True:
            time.sleep(_LOOK_S)
            cluster.check_ray()
            now = _incarnations(cluster)
            for line in changes(seen, now, cluster.workers, cluster.revoked):
                console.print(
                    f"{time.strftime('%H:%M:%S')}  {line}", highlight=False, soft_wrap=True
                )
            seen = now
    except StopWanted:
        console.print(f"stopping; requests have {cluster.config.drain_s:g} s to end")


def changes(
    before: Mapping[str, int],
    after: Mapping[str, int],
    members: Collection[str],
    revoked: Collection[str] = (),
) -> list[str]:
    """Describe the changes between two looks at the incarnations by worker_id.

    members: the workers that should be there. revoked: those whose certificates count no more.
    """
    gone = [_of_gone(name, members, revoked) for name in before if name not in after]
    back = [f"{name} is here" for name in after if name not in before]
    again = [
        f"{name} was started again"
        for name in before.keys() & after.keys()
        if before[name] != after[name]
    ]
    return gone + back + again


def _of_gone(name: str, members: Collection[str], revoked: Collection[str]) -> str:
    if name in revoked:
        return f"{name} is gone: its certificate was revoked. `baton scale` adds another worker"
    if name in members or name == ROUTER:
        return f"{name} is gone; if its process has died, Ray starts it again"
    return f"{name} has left"


def _incarnations(cluster: Cluster) -> dict[str, int]:
    """Return incarnations by worker_id, and 0 for the router; empty if the router is silent."""
    try:
        workers = cluster.router.server_info()["workers"]
    except NotRunning:
        return {}
    return {ROUTER: 0} | {worker["worker_id"]: worker["incarnation"] for worker in workers}
