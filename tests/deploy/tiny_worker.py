"""Workers of their own over a model of two layers, in this process, and a client of one."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from certificates import folder_of
from kit.polling import until_answered

from baton.bench.checkpoints import GRANITE_SMALL
from baton.core.role import Role
from baton.core.telemetry_options import TelemetryOptions
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.standalone.config import StandaloneConfig
from baton.standalone.worker import StandaloneWorker
from baton.worker.config import StateReturn, WorkerConfig

DEADLINE_S = 60.0
GRID = 16
VOCAB = 300
PLAIN = TelemetryOptions()
TINY: dict[str, Any] = GRANITE_SMALL | {
    "hidden_size": 32,
    "layer_types": ["mamba", "attention"],
    "mamba_chunk_size": GRID,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "max_position_embeddings": 4096,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "shared_intermediate_size": 32,
    "vocab_size": VOCAB,
}


class Client:
    """An HTTP client of a worker, or of a router."""

    def __init__(self, http: httpx.AsyncClient, grpc_address: str) -> None:
        self.http = http
        self.grpc_address = grpc_address

    async def generate(self, ids: list[int], new: int = 4, **body: Any) -> Any:
        """Return the answer's JSON: a list where several are asked for."""
        params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        given = {"input_ids": ids, "sampling_params": params | body.pop("params", {})} | body
        reply = await self.http.post("/generate", json=given)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def state(self) -> dict[str, Any]:
        """The engine's part of `/server_info`."""
        info: dict[str, Any] = (await self.http.get("/server_info")).json()["internal_states"][0]
        return info

    async def ready(self) -> None:
        """Wait until the router, or the worker that stands alone, could answer a request."""

        async def is_ready() -> bool:
            return (await self.http.get("/ready")).status_code == 200

        await until_answered(is_ready)

    async def running(self, count: int) -> None:
        async def has_them() -> bool:
            return bool((await self.state())["running"] == count)

        await until_answered(has_them)


@asynccontextmanager
async def served(folder: Path, role: Role = Role.BOTH, **engine: Any) -> AsyncIterator[Client]:
    """A worker on free ports; at the end the engine's books balance."""
    async with make_worker(folder, role, **engine) as worker:
        url = f"http://{worker.addresses.http}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            yield Client(http, worker.addresses.grpc)
            assert not await findings(worker)


async def findings(worker: StandaloneWorker) -> list[str]:
    """Return the findings of the audit of the worker's engine."""
    found: list[str] = await worker._context.port.call(Engine.audit)
    return found


def make_worker(
    folder: Path,
    role: Role = Role.BOTH,
    routers: tuple[str, ...] = (),
    clients: StandaloneConfig | None = None,
    state_return: StateReturn = StateReturn.OFF,
    telemetry: TelemetryOptions = PLAIN,
    **engine: Any,
) -> StandaloneWorker:
    options = {"page_size": GRID, "max_running": 4, "memory_bytes": 64 << 20, "threads": 1}
    if role is Role.DECODE or state_return is not StateReturn.OFF:
        options["tickets"] = 1
    config = EngineConfig(folder, **options | engine)
    name = f"{role}-0"
    certificate = None if role is Role.BOTH else folder_of(role.value, name)
    return StandaloneWorker(
        WorkerConfig(
            name,
            role,
            config,
            routers=routers,
            credentials=certificate,
            state_return=state_return,
            telemetry=telemetry,
        ),
        Engine.load(config),
        clients,
    )


def prompt(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(tokens)]
