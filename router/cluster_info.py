"""The cluster as JSON values, for `/server_info`, `baton status` and Prometheus."""

import json
from collections.abc import Iterable, Mapping, Sequence

from baton.core.role import Role
from baton.proto.worker_pb2 import OwnerCount, WorkerStatus
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.router.cluster_view.worker_warnings import worker_warnings
from baton.rpc.metric_aliases.figures import Totals, accept_length


def worker_info(
    worker: Worker, *, ready: bool, placed: int, heard_s: float, here: int | None
) -> dict[str, object]:
    """Return one worker's entry in `/server_info`.

    ready: requests can be placed on the worker now.
    placed: requests of this router on the worker.
    heard_s: seconds since its last report.
    here: most tokens of a prompt that a decode rank would compute itself now; None: no rank.
    """
    status, details = worker.status, worker.details.status
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
        "routers": list(worker.routers),
        "share": worker.share,
        "placed": placed,
        "prefill_here_tokens": here,
        "decode_step_ms": round(status.decode_step_us / 1000, 3),
        "prompt_token_us": round(status.prompt_token_us, 2),
        "beside_decode": status.beside_decode,
        "memory_held": round(status.memory_held, 3),
        "link_bytes_per_s": status.link_bytes_per_s,
        "slow_links": dict(sorted(status.slow_links.items())),
        "model": status.model,
        "running": status.running,
        "waiting": status.waiting,
        "max_running": status.max_running,
        "max_model_len": status.max_model_len,
        "slots": _by_owner(status.slots),
        "pages": _by_owner(status.pages),
        "page_size": status.page_size,
        "host_tier": _host_tier(status) if status.HasField("host") else None,
        "file_tier": _file_tier(status) if status.HasField("files") else None,
        "handoffs": dict(sorted(status.handoffs.items())),
        "shortages": {pool: round(share, 3) for pool, share in sorted(status.shortages.items())},
        "memory_plan": {part.name: part.text for part in details.memory_plan},
        "uptime_s": status.uptime_s,
        "heard_s": round(heard_s, 3),
        "lag_ms": status.lag_us / 1000,
        "pid": status.pid,
        "rank_pids": [status.pid, *status.rank_pids],
        "rank_devices": list(details.rank_devices),
        "metrics_path": metrics_path(worker.worker_id),
        "peers": [peer.worker_id for peer in details.peers],
        "channels": dict(sorted(details.channels.items())),
        "settings": {name: json.loads(value) for name, value in sorted(details.settings.items())},
        "fingerprint": dict(worker.fingerprint),
    }


def notes_info(table: WorkerTable) -> dict[str, object]:
    """Return what `/server_info` says of workers that were refused, and of those that harm."""
    return {"refused_workers": table.notes.reasons(), "worker_warnings": worker_warnings(table)}


def engine_settings(ranks: Sequence[Worker]) -> dict[str, object]:
    """Return the options that the decode ranks run with, by SGLang's names.

    `internal_states` has one entry for each rank, ordered by rank number: its options, and what
    its drafts gave. The first one's are also at the top level, where clients of a single SGLang
    server look for options.
    """
    settings = [
        {name: json.loads(value) for name, value in rank.details.status.settings.items()}
        | accept_length(Totals.from_proto(rank.status.totals))
        for rank in sorted(ranks, key=lambda rank: rank.rank)
    ]
    names = [
        {"worker_id": rank.worker_id, "dp_group": rank.group, "dp_rank": rank.rank}
        for rank in sorted(ranks, key=lambda rank: rank.rank)
    ]
    states = [name | options for name, options in zip(names, settings, strict=True)]
    return {**(settings[0] if settings else {}), "dp_size": len(ranks), "internal_states": states}


def metrics_path(worker_id: str) -> str:
    """Return the path at which the router serves a worker's metrics."""
    return f"/workers/{worker_id}/metrics"


def scrape_targets(
    router_id: str, workers: Iterable[Worker], address: str, scheme: str
) -> list[dict[str, object]]:
    """Return the targets of the router and of its workers, in the form of Prometheus' HTTP service
    discovery. All are served by the router's HTTP server. Of the routers that have a worker, the
    first by name has it as a target: whoever asks them all scrapes each worker once.

    address: its `host:port`. scheme: http or https.
    """
    router = {"baton_role": "router", "baton_router": router_id}
    # What Prometheus uses unless a label says otherwise is http.
    common = {"__scheme__": scheme} if scheme == "https" else {}
    name = router_id.split("/")[0]
    mine = (w for w in workers if name == next(iter(w.routers), name))
    every = [router, *map(_labels, mine)]
    return [{"targets": [address], "labels": labels | common} for labels in every]


def _labels(worker: Worker) -> dict[str, str]:
    labels = {
        "__metrics_path__": metrics_path(worker.worker_id),
        "baton_worker": worker.worker_id,
        "baton_role": worker.role.value,
    }
    if worker.role is Role.DECODE:
        labels |= {"baton_dp_group": str(worker.group), "baton_dp_rank": str(worker.rank)}
    return labels


def _by_owner(counts: Iterable[OwnerCount]) -> dict[str, int]:
    return {count.owner: count.count for count in counts}


def _host_tier(status: WorkerStatus) -> dict[str, object]:
    """Return what a worker keeps in its host's memory: bytes in use and in all, and copies."""
    host = status.host
    slots, pages = _by_owner(host.slots), _by_owner(host.pages)
    page_bytes = status.page_size * status.token_bytes
    return {
        "slots": slots,
        "pages": pages,
        "used_bytes": _used(slots) * status.state_bytes + _used(pages) * page_bytes,
        "total_bytes": sum(slots.values()) * status.state_bytes + sum(pages.values()) * page_bytes,
        "saving": host.saving,
        "loading": host.loading,
        "hit_tokens": status.totals.host_hit_tokens,
    }


def _file_tier(status: WorkerStatus) -> dict[str, object]:
    """Return what lies in the folder of a worker's files, whosever it is, and what moves."""
    files = status.files
    return {
        "files": files.files,
        "used_bytes": files.bytes,
        "total_bytes": files.most_bytes,
        "writing": files.writing,
        "reading": files.reading,
        "hit_tokens": status.totals.file_hit_tokens,
    }


def _used(counts: Mapping[str, int]) -> int:
    return sum(count for owner, count in counts.items() if owner != "free")
