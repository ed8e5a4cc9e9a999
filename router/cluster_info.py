"""The cluster as JSON values: what `/server_info` serves and `baton status` prints."""

import json
from collections.abc import Iterable, Sequence

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
        "settings": {name: json.loads(value) for name, value in status.settings.items()},
        "fingerprint": dict(worker.fingerprint),
    }


def engine_settings(ranks: Sequence[Worker]) -> dict[str, object]:
    """The options that the decode ranks run with, by SGLang's names.

    `internal_states` has one entry a rank, in the order that `routed_dp_rank` counts; the first
    rank's stand beside it, as they do where there is but one server.
    """
    states = [
        {"worker_id": rank.worker_id} | {k: json.loads(v) for k, v in rank.status.settings.items()}
        for rank in ranks
    ]
    first = {k: v for k, v in states[0].items() if k != "worker_id"} if states else {}
    return {**first, "dp_size": len(ranks), "internal_states": states}


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
