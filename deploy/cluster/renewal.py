"""Certificates and API keys that change while processes on other hosts run.

A worker or router reads its files again by itself. On a joined Ray they are a copy on its host, so
what `baton certs` and `baton keys` change here must be sent there.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from baton.core.supervised import OnFailure, ProcessSupervisor, thread
from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster.actors import ActorHandle, Call

Files = Mapping[ActorHandle, Callable[[], CredentialFiles]]
"""A reader of each present process's files on this machine."""

LOOK_S = 1.0
_END_S = 10.0


@contextmanager
def renewing(files: Callable[[], Files], owner: ProcessSupervisor) -> Iterator[None]:
    """Send to each process what its files here hold, again and again, until the context ends.

    A process that has it already changes nothing. One that Ray has started again has its first
    arguments, and so may have lost a change that was sent before.
    """
    over = threading.Event()
    # ANEW: it sends all that there is, again and again.
    sender = thread(lambda: _send(files, over), owner, OnFailure.ANEW, "renewal", may_return=True)
    try:
        yield
    finally:
        over.set()
        sender.join(_END_S)


def _send(files: Callable[[], Files], over: threading.Event) -> None:
    under_way: dict[ActorHandle, Call] = {}
    while not over.wait(LOOK_S):
        present = files()
        # An actor without a process has one call that waits for it, not one more each second.
        under_way = {a: call for a, call in under_way.items() if a in present and not call.ready()}
        for actor, read in present.items():
            if actor in under_way:
                continue
            try:
                found = read()
            except OSError:  # being replaced, or of a worker that has just left
                continue
            under_way[actor] = actor.renew(found)
