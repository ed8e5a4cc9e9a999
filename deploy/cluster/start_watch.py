"""Waiting for several actors to start, with reports on their progress."""

import time
from collections.abc import Sequence
from typing import Any

from baton.deploy.cluster.actors import ActorHandle, Call, WorkerHandle
from baton.deploy.errors import StartError
from baton.deploy.messages.start_progress import StartProgress

_POLL_S = 0.1
_PATIENCE_S = 5.0  # after this time, ask Ray why a process has not started


class StartWatch:
    """One actor's start and its last progress report."""

    def __init__(self, actor: ActorHandle, progress: StartProgress, shared: bool) -> None:
        self.actor = actor
        self._shared = shared
        self._progress = progress
        self._start = actor.start()
        self._asked: Call | None = None
        self._look_at = time.monotonic() + _PATIENCE_S
        progress.update(actor.name, "process", 0.0)

    def poll(self) -> Any | None:
        """Return the actor's `Started`, or None while it starts. Raises StartError."""
        if self._start.ready():
            return self._start.result()
        if isinstance(self.actor, WorkerHandle):
            self._ask(self.actor)
        return None

    def _tell_what_it_lacks(self) -> None:
        if self._shared and time.monotonic() > self._look_at:
            self._look_at += _PATIENCE_S
            lacks = self.actor.lacks()
            if lacks:
                self._progress.update(self.actor.name, f"no process yet: {lacks}", 0.0)

    def _ask(self, worker: WorkerHandle) -> None:
        if self._asked is None:
            self._asked = worker.progress()
        elif self._asked.ready():
            phase, fraction = self._asked.result()
            self._progress.update(worker.name, phase, fraction)
            self._asked = None
        else:  # no process answers yet
            self._tell_what_it_lacks()


def wait_for_all(
    actors: Sequence[ActorHandle], progress: StartProgress, deadline_s: float, *, shared: bool
) -> dict[str, Any]:
    """Return each actor's `Started` by name. Raises StartError at the first that fails.

    shared: True if others use this Ray too, and may hold the resources that an actor asks for.
    """
    until = time.monotonic() + deadline_s
    watches = {actor.name: StartWatch(actor, progress, shared) for actor in actors}
    started: dict[str, Any] = {}
    began = time.monotonic()
    while watches:
        for name, watch in list(watches.items()):
            result = watch.poll()
            if result is not None:
                started[name] = result
                del watches[name]
                progress.done(name, f"ready after {time.monotonic() - began:.1f} s")
        if watches and time.monotonic() > until:
            raise StartError(
                f"{', '.join(watches)} did not start within {deadline_s:g} s; a larger "
                "--start-timeout waits longer"
            )
        time.sleep(_POLL_S)
    return started
