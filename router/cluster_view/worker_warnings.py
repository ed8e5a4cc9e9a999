"""Warnings about workers whose limits or addresses harm the others."""

from baton.core.address import is_loopback
from baton.router.cluster_view.worker_table import Worker, WorkerTable


def worker_warnings(table: WorkerTable) -> dict[str, str]:
    """Return what is wrong with each worker that harms the others, by its name."""
    workers = table.workers()
    longest = max((worker.status.max_model_len for worker in workers), default=0)
    found = {}
    for worker in workers:
        caller = table.notes.caller(worker.worker_id)
        said = filter(None, (_address(worker, caller), _context(worker, longest)))
        if text := "; ".join(said):
            found[worker.worker_id] = text
    return found


def _address(worker: Worker, caller: str | None) -> str:
    host = worker.identity.address.rpartition(":")[0]
    if caller is None or is_loopback(caller) or not is_loopback(host):
        return ""
    return f"other hosts cannot reach it at {worker.identity.address}; give it --peer-host"


def _context(worker: Worker, longest: int) -> str:
    tokens = worker.status.max_model_len
    if not tokens or tokens == longest:
        return ""
    return (
        f"its context of {tokens:,} tokens is all that the cluster has, others have {longest:,}; "
        "give all the same --max-model-len"
    )
