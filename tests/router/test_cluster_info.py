"""The JSON that describes a worker."""

import random
from dataclasses import replace

from baton.proto.common_pb2 import DECODE, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import (
    EngineTotals,
    FileTier,
    HostTier,
    OwnerCount,
    PlanPart,
    WorkerStatus,
)
from baton.router.cluster_info import worker_info
from baton.router.cluster_view.worker_table import Details, Worker, WorkerTable


def told(status: WorkerStatus) -> Worker:
    """Return a rank with this report."""
    table = WorkerTable(1.0, lambda: 0.0)
    identity = WorkerIdentity(worker_id="d0", incarnation=1, address="a:1", role=DECODE)
    worker = table.register(
        Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            worker=identity,
        )
    )
    return replace(worker, status=status, details=Details(status))


def test_a_workers_fields_come_in_one_order_however_they_were_reported() -> None:
    """A protobuf map has no order of its own: each process may read another one."""
    names = [f"field {number}" for number in range(20)]
    random.shuffle(names)
    status = WorkerStatus(
        memory_plan=[PlanPart(name=name, text="1 GiB") for name in names],
        handoffs=dict.fromkeys(names, 1),
        channels=dict.fromkeys(names, "grpc"),
        settings=dict.fromkeys(names, "1"),
    )
    info = worker_info(told(status), ready=True, placed=0, heard_s=0.0, here=None)
    for part in ("handoffs", "channels", "settings"):
        found = info[part]
        assert isinstance(found, dict) and list(found) == sorted(names), part
    plan = info["memory_plan"]
    assert isinstance(plan, dict) and list(plan) == names, "as the worker planned"
    assert info["host_tier"] is None and info["file_tier"] is None


def test_a_worker_tells_what_its_host_keeps_in_bytes() -> None:
    pools = {"cache": 3, "free": 5}
    owners = [OwnerCount(owner=owner, count=count) for owner, count in pools.items()]
    status = WorkerStatus(
        page_size=16,
        state_bytes=1000,
        token_bytes=10,
        host=HostTier(slots=owners, pages=owners, saving=2, loading=1),
        totals=EngineTotals(host_hit_tokens=99),
    )
    info = worker_info(told(status), ready=True, placed=0, heard_s=0.0, here=None)
    assert info["host_tier"] == {
        "slots": pools, "pages": pools, "used_bytes": 3 * (1000 + 160),
        "total_bytes": 8 * (1000 + 160), "saving": 2, "loading": 1, "hit_tokens": 99,
    }  # fmt: skip


def test_a_worker_tells_what_lies_in_the_folder_of_its_files() -> None:
    files = FileTier(files=7, bytes=3000, most_bytes=9000, writing=2, reading=1)
    status = WorkerStatus(files=files, totals=EngineTotals(file_hit_tokens=99))
    info = worker_info(told(status), ready=True, placed=0, heard_s=0.0, here=None)
    assert info["file_tier"] == {
        "files": 7, "used_bytes": 3000, "total_bytes": 9000, "writing": 2, "reading": 1,
        "hit_tokens": 99,
    }  # fmt: skip
