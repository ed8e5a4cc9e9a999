"""The cluster as JSON values: what `/server_info` serves and `baton status` prints."""

from collections.abc import Iterable

from baton.proto.worker_pb2 import OwnerCount
from baton.router.worker_table import Worker


def worker_info(worker: Worker, *, ready: bool, placed: int) -> dict[str, object]:
    """ready: requests can be placed on it now; placed: requests of this router that it has."""
    status = worker.status
    return {
        "worker_id": worker.worker_id,
        "incarnation": worker.identity.incarnation,
        "role": worker.role.value,
        "address": worker.identity.address,
        "ready": ready,
        "leaving": worker.leaving,
        "placed": placed,
        "model": status.model,
        "running": status.running,
        "waiting": status.waiting,
        "max_running": status.max_running,
        "max_model_len": status.max_model_len,
        "slots": _by_owner(status.slots),
        "pages": _by_owner(status.pages),
        "page_size": status.page_size,
        "handoffs": dict(status.handoffs),
        "memory_plan": dict(status.memory_plan),
        "uptime_s": status.uptime_s,
        "pid": status.pid,
        "metrics_address": status.metrics_address,
        "peers": [peer.worker_id for peer in status.peers],
        "fingerprint": dict(worker.fingerprint),
    }


def scrape_targets(workers: Iterable[Worker]) -> list[dict[str, object]]:
    """Every worker's /metrics, in the form of Prometheus' HTTP service discovery."""
    return [
        {
            "targets": [worker.status.metrics_address],
            "labels": {"baton_worker": worker.worker_id, "baton_role": worker.role.value},
        }
        for worker in workers
        if worker.status.metrics_address
    ]


def _by_owner(counts: Iterable[OwnerCount]) -> dict[str, int]:
    return {count.owner: count.count for count in counts}
