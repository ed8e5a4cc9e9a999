"""The process that starts a detached cluster, in a session of its own.

`baton serve --detach` starts it, with the config in its standard input, and reads its standard
output: a line of JSON for each report, then one with the outcome. When that command ends, however
it ends, this process goes on. It starts Ray and the supervisor. On a joined Ray it ends then; a Ray
of the cluster's own lives in this process, and ends with it.
"""

import json
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

import ray

from baton.core.errors import BatonError
from baton.core.supervised import ProcessSupervisor
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.ray_home import OwnRay, RayHome, ray_for
from baton.deploy.cluster.start_reports import StartReport
from baton.deploy.detached.supervisor_actor import NAME, StartNews, SupervisorActor, folder_for
from baton.deploy.errors import StartError
from baton.deploy.files.owned_folder import owned_folder
from baton.deploy.files.state_file import (
    ClusterState,
    control_path,
    folder,
    process_named,
    published,
)
from baton.deploy.messages.control import DESCRIBE, STOP, Handlers, listening
from baton.deploy.messages.start_progress import StartProgress
from baton.deploy.process.stop import StopWanted, exit_now, stop_on_signals

_HEAD = "node:__internal_head__"
_LOOK_S = 0.2
_ANSWER_S = 60.0  # for the supervisor's process to start, and to answer


class _Listener:
    """The command that waits for the start, while it does."""

    def tell(self, message: dict[str, object]) -> None:
        with suppress(OSError):  # it has ended; the start goes on
            os.write(1, json.dumps(message).encode() + b"\n")

    def tell_report(self, report: StartReport) -> None:
        self.tell({"report": asdict(report)})


def start_detached(config: ClusterConfig, listener: _Listener) -> None:
    """Start the cluster, and run its Ray if that is its own. Raises BatonError or StopWanted."""
    with ray_for(config) as home, ExitStack() as told:
        _publish_start(config, told)
        began = time.monotonic()
        listener.tell_report(StartReport("Ray", "starting", 0.0))
        try:
            home.connect()
            took = time.monotonic() - began
            listener.tell_report(StartReport("Ray", f"ready after {took:.1f} s", None))
            _supervise(config, home, listener, told)
        finally:
            home.kill_if_lost()
            home.leave()
            if isinstance(home, OwnRay):  # a joined Ray's supervisor removes it
                shutil.rmtree(folder_for(config.name), ignore_errors=True)


def _publish_start(config: ClusterConfig, held: ExitStack) -> None:
    """Tell of the start until the supervisor does, which is a part of it. held: keeps that up."""
    own = held.enter_context(owned_folder(folder()))
    process, name = process_named(os.getpid()), config.name
    described = {"name": name, "phase": "starting", "http_url": "", "parts": {"Ray": "starting"}}

    def stop(arguments: Mapping[str, object], progress: StartProgress) -> Mapping[str, object]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    handlers: Handlers = {DESCRIBE: lambda *_: described, STOP: stop}
    held.enter_context(listening(control_path(own), handlers, ProcessSupervisor()))
    model, control = str(config.engine.model), str(control_path(own))
    state = ClusterState(name, *process, time.time(), model, [""], "", control)
    held.enter_context(published(own, state))


def _supervise(config: ClusterConfig, home: RayHome, listener: _Listener, told: ExitStack) -> None:
    """told: what tells of the start until the supervisor has ended it."""
    own = isinstance(home, OwnRay)
    options = {
        "name": NAME,
        "lifetime": "detached",
        "max_restarts": -1,
        "num_cpus": 0,
        # Ray ends with its head node, so that the supervisor depends on no other.
        "resources": {_HEAD: 0.001},
        "max_concurrency": 8,
    }
    supervisor = (
        ray.remote(SupervisorActor)
        .options(**options)
        .remote(config, process_named(os.getpid()) if own else None)
    )
    try:
        _follow(supervisor, home, listener)
        told.close()
    except StopWanted:
        ray.get(supervisor.stop.remote(), timeout=_ANSWER_S)
        if own:
            raise
        threading.Event().wait(config.drain_s)
        raise
    while own:
        home.check()
        time.sleep(_LOOK_S)


def _follow(supervisor: Any, home: RayHome, listener: _Listener) -> None:
    """Pass on the reports until the cluster serves. Raises StartError if it never will."""
    seen = 0
    while True:
        home.check()
        try:
            found: StartNews = ray.get(supervisor.follow.remote(seen), timeout=_ANSWER_S)
        except ray.exceptions.RayError as err:
            raise StartError(f"the supervisor of the cluster does not answer: {err}") from err
        for report in found.reports:
            listener.tell_report(report)
        seen += len(found.reports)
        if found.failed:
            ray.kill(supervisor, no_restart=True)
            raise StartError(found.failed)
        if found.banner is not None:
            listener.tell({"greeting": asdict(found.banner)})
            return
        time.sleep(_LOOK_S)


def main() -> None:
    config: ClusterConfig = pickle.load(sys.stdin.buffer)
    listener = _Listener()
    with stop_on_signals():
        code = 0
        try:
            start_detached(config, listener)
        except StopWanted:
            pass
        except BatonError as err:
            listener.tell({"failed": str(err)})
            code = 1
    exit_now(code)


if __name__ == "__main__":
    main()
