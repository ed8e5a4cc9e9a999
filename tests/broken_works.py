"""Faults in the works that run beside their makers in a process, wherever they stand."""

import asyncio

from kit.polling import until

from baton.core.supervised import ProcessSupervisor, SupervisedWork

DEADLINE_S = 60.0


class MadeToFail(ValueError):
    """A fault that no code of Baton's expects."""


async def work_of(owner: ProcessSupervisor, name: str) -> SupervisedWork:
    """Wait until a work with a name that begins so runs, and return it."""
    found = await until(lambda: [work for work in owner.works if work.name.startswith(name)])
    return found[0]


async def fail(work: SupervisedWork) -> None:
    """Raise MadeToFail in a task at the place where it waits, which may be inside a child."""
    assert work.task is not None
    async with asyncio.timeout(DEADLINE_S):
        while (waiter := _innermost(work.task)) is None:  # it is about to run
            await asyncio.sleep(0)
    waiter.set_exception(MadeToFail("as the test wants it"))


def _innermost(task: "asyncio.Task[None]") -> "asyncio.Future[object] | None":
    """Return the future for which a task waits, or the task for which it does; None: for none."""
    waiter = task._fut_waiter  # type: ignore[attr-defined]
    while isinstance(waiter, asyncio.Task):
        waiter = waiter._fut_waiter  # type: ignore[attr-defined]
    return None if waiter is None or waiter.done() else waiter
