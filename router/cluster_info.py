"""The cluster as JSON values: what `/server_info` serves and `baton status` prints."""

import json
from collections.abc import Iterable, Sequence

from baton.proto.worker_pb2 import OwnerCount
from baton.router.worker_table import Role, Worker


def worker_info(worker: Worker, *, ready: bool, placed: int, heard_s: float) -> dict[str, object]:
    """ready: requests can be placed on it now; placed: requests of this router that it has;
    heard_s: since its last report."""
    status = worker.status
    return {
        "worker_id": worker.worker_id,
        "incarnation": worker.identity.incarnation,
        "role": worker.role.value,
        "dp_group": worker.group if worker.role is Role.DECODE else None,
        "dp_rank": worker.rank if worker.role is Role.DECODE else None,
        "address": worker.identity.address,
        "state": "draining" if worker.leaving else "ready" if ready else "not ready",
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
        "heard_s": round(heard_s, 3),
        "lag_ms": status.lag_us / 1000,
        "pid": status.pid,
        "metrics_address": status.metrics_address,
        "peers": [peer.worker_id for peer in status.peers],
        "channels": dict(status.channels),
        "settings": {name: json.loads(value) for name, value in status.settings.items()},
        "fingerprint": dict(worker.fingerprint),
    }


def engine_settings(ranks: Sequence[Worker]) -> dict[str, object]:
    """The options that the decode ranks run with, by SGLang's names.

    `internal_states` has one entry a rank, in the order that `routed_dp_rank` counts; the first
    rank's stand beside it, as they do where there is but one server.
    """
    settings = [
        {name: json.loads(value) for name, value in rank.status.settings.items()}
        for rank in sorted(ranks, key=lambda rank: rank.rank)
    ]
    names = [
        {"worker_id": rank.worker_id, "dp_group": rank.group, "dp_rank": rank.rank}
        for rank in sorted(ranks, key=lambda rank: rank.rank)
    ]
    states = [name | options for name, options in zip(names, settings, strict=True)]
    return {**(settings[0] if settings else {}), "dp_size": len(ranks), "internal_states": states}


def scrape_targets(workers: Iterable[Worker]) -> list[dict[str, object]]:
    """Every worker's /metrics, in the form of Prometheus' HTTP service discovery."""
    return [
        {
            "targets": [worker.status.metrics_address],
            "labels": _labels(worker),
        }
        for worker in workers
        if worker.status.metrics_address
    ]


def _labels(worker: Worker) -> dict[str, str]:
    labels = {"baton_worker": worker.worker_id, "baton_role": worker.role.value}
    if worker.role is Role.DECODE:
        labels |= {"baton_dp_group": str(worker.group), "baton_dp_rank": str(worker.rank)}
    return labels


def _by_owner(counts: Iterable[OwnerCount]) -> dict[str, int]:
    return {count.owner: count.count for count in counts}
