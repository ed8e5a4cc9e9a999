"""Certificates that change while workers on other hosts run.

A worker reads its certificate's folder again by itself. On a joined Ray that folder is a copy on
the worker's host, so what `baton certs` changes here must be sent there.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster.actors import Call, WorkerHandle

LOOK_S = 1.0
_END_S = 10.0


@contextmanager
def renewing(workers: Callable[[], Mapping[WorkerHandle, Path]]) -> Iterator[None]:
    """Send to each worker what its folder here has, again and again, until the context ends.

    A worker that has it already changes nothing. One that Ray has started again has its first
    arguments, and so may have lost a change that was sent before.

    workers: the folder of each present worker's certificate.
    """
    over = threading.Event()
    thread = threading.Thread(target=_send, args=(workers, over), name="renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def _send(workers: Callable[[], Mapping[WorkerHandle, Path]], over: threading.Event) -> None:
    under_way: dict[WorkerHandle, Call] = {}
    while not over.wait(LOOK_S):
        present = workers()
        # A worker without a process has one call that waits for it, not one more each second.
        under_way = {w: call for w, call in under_way.items() if w in present and not call.ready()}
        for worker, folder in present.items():
            if worker in under_way:
                continue
            try:
                files = CredentialFiles.read(folder)
            except OSError:  # being replaced, or of a worker that has just left
                continue
            under_way[worker] = worker.renew(files)
