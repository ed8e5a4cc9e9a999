"""Columns that are kept up to date equal columns that are made anew."""

import random

from baton.core.role import Role
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import WorkerStatus
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.placement.columns import Columns
from baton.router.placement.placed_load import PlacedLoad

NAMES = [f"{letter}{number}" for letter in "pd" for number in range(12)]
FIELDS = (
    "rows", "workers", "ids", "reported", "placed", "capacity", "fullness", "queued_tokens",
    "prompt_token_us", "most", "full", "numbers", "leaving", "staying", "shared",
)  # fmt: skip


def hello(name: str, incarnation: int) -> Hello:
    role = PREFILL if name.startswith("p") else DECODE
    identity = WorkerIdentity(worker_id=name, address="a:1", role=role, incarnation=incarnation)
    return Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity)


def test_every_change_of_workers_and_load_reaches_its_row_and_no_other() -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    table, load = WorkerTable(1.0, lambda: 0.0), PlacedLoad()
    kept = {role: Columns(table, role, load) for role in (Role.PREFILL, Role.DECODE)}
    for step in range(600):
        name = rng.choice(NAMES)
        worker = table.find(name)
        match rng.randrange(8):
            case 0 if worker is not None:
                table.remove(worker, "its stream ended")
            case 1:
                table.register(hello(name, step))
            case 2 | 3 | 4 if worker is not None:
                status = WorkerStatus(
                    running=rng.randrange(9),
                    max_running=8,
                    queued_tokens=rng.randrange(99),
                    prompt_token_us=rng.randrange(9),
                    memory_held=rng.random(),
                    link_bytes_per_s=rng.choice((0, 1e8, 1e9)),
                    slow_links={"d1": rng.choice((0, 1e6, 1e7))} if rng.random() < 0.3 else {},
                    state_bytes=1_000_000,
                    token_bytes=2,
                )
                share = rng.choice((None, None, rng.randrange(1, 5)))
                table.report(worker, status, rng.random() < 0.2, share)
            case _:
                load.add(name, rng.choice((1, 2)), rng.randrange(50))
        for role, columns in kept.items():
            anew = Columns(WorkerTable(1.0, lambda: 0.0), role, PlacedLoad())
            anew._table, anew._load = table, load
            anew._fill()
            for field in FIELDS:
                assert getattr(columns, field) == getattr(anew, field), (step, field)
            assert columns.links.differing() == anew.links.differing(), step


def test_a_worker_is_as_full_as_its_memory_or_its_places() -> None:
    table, load = WorkerTable(1.0, lambda: 0.0), PlacedLoad()
    columns = Columns(table, Role.DECODE, load)
    worker = table.register(hello("d0", 1))
    for held, full in ((0.1, 0.25), (0.9, 0.9)):
        status = WorkerStatus(running=2, max_running=8, memory_held=held)
        table.report(worker, status, leaving=False)
        assert columns.fullness == [full]
