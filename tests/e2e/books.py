"""Checks of what the workers of an idle cluster own: only what a prefix cache keeps is allowed."""

import asyncio
import time

from kit.polling import until_asked

from baton.deploy.cluster.cluster import Cluster
from baton.engine.layout.owners import Owner
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials

IDLE_MS = 60_000
RETURN_S = 120.0
KEPT = {"free", "cache"}


async def settled_findings(cluster: Cluster) -> list[str]:
    """Wait until every worker is idle, then what is wrong in its books, in words."""
    workers = await _everyone(cluster)
    operator = Credentials(cluster.operator_folder)
    return [
        f"{w['worker_id']}: {finding}" for w in workers for finding in await _audit(w, operator)
    ]


async def _everyone(cluster: Cluster) -> list[dict[str, str]]:
    """The workers, once none is missing: one that was killed is started again by Ray."""

    def all_there() -> list[dict[str, str]] | None:
        workers: list[dict[str, str]] = cluster.router.server_info()["workers"]
        ready = {w["worker_id"] for w in workers if w["ready"]}
        return workers if ready == set(cluster.workers) else None

    return await until_asked(all_there)


async def _audit(worker: dict[str, str], operator: Credentials) -> list[str]:
    peer = common_pb2.WorkerIdentity(
        worker_id=worker["worker_id"],
        role=worker["role"].upper(),
        address=worker["address"],
    )
    async with operator.dial_worker(peer, OPTIONS) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        flushed = await stub.FlushCache(worker_pb2.FlushCacheRequest(timeout_ms=IDLE_MS))
        findings = [flushed.error.message] if flushed.HasField("error") else []
        findings += (await stub.Audit(worker_pb2.AuditRequest())).findings
        return findings + await _kept(stub)


async def _kept(stub: worker_pb2_grpc.WorkerStub) -> list[str]:
    """Return what is still owned after the quarantine had its time: a writer whose request was
    cancelled says a moment later that it writes no more, and an idle engine does not wait for that.
    """
    deadline_s = time.monotonic() + IDLE_MS / 1000
    while True:
        status = await stub.Status(worker_pb2.StatusRequest())
        kept = [
            (entry.owner, f"{entry.count} {name} of owner {entry.owner} after the last request")
            for name, owners in (("slots", status.slots), ("pages", status.pages))
            for entry in owners
            if entry.count and entry.owner not in KEPT
        ]
        passing = any(owner == Owner.QUARANTINE for owner, _ in kept)
        if not passing or time.monotonic() > deadline_s:
            return [finding for _, finding in kept]
        await asyncio.sleep(0.02)  # its time is up at the deadline above
