"""A rank is revoked while it writes an answer: another one continues it, and nobody comes back."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from certificates import folder_of
from deploy.tiny_worker import DEADLINE_S, GRID, Client, findings, prompt, served
from kit.polling import until, until_answered

from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from baton.router.server import RouterServer
from baton.rpc import credentials as credentials_module
from baton.rpc import file_watcher
from baton.standalone.worker import StandaloneWorker
from baton.worker.config import WorkerConfig

CLUSTER = "revoking"  # whose certificates no other test uses
TOKENS = 100 * GRID
NAMES = ((Role.PREFILL, "prefill-0"), (Role.DECODE, "decode-0"), (Role.DECODE, "decode-1"))


def make(folder: Path, role: Role, name: str, router: str) -> StandaloneWorker:
    engine = EngineConfig(
        folder, page_size=GRID, max_running=4, memory_bytes=64 << 20, threads=1,
        tickets=int(role is Role.DECODE),
    )  # fmt: skip
    certificate = folder_of(role.value, name, cluster=CLUSTER)
    config = WorkerConfig(name, role, engine, routers=(router,), credentials=certificate)
    return StandaloneWorker(config, Engine.load(engine))


def revoke(name: str) -> None:
    """Tell every process but the revoked one, which would not listen."""
    for role, other in (("router", "router-0"), *NAMES):
        if other != name:
            folder = folder_of(str(role), other, cluster=CLUSTER)
            (folder / "revoked").write_text(f"{name}.decode.{CLUSTER}.baton\n")


async def test_its_answer_goes_on_elsewhere(
    tiny: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watcher, "RECHECK_S", 0.0)
    monkeypatch.setattr(credentials_module, "CHECK_S", 0.05)
    ids = prompt(rng, 3 * GRID + 1)
    async with served(tiny) as alone:
        expected = (await alone.generate(ids, TOKENS))["output_ids"]
    for role, name in (("router", "router-0"), *NAMES):
        (folder_of(str(role), name, cluster=CLUSTER) / "revoked").unlink(missing_ok=True)
    router = RouterServer(
        RouterConfig(tiny, credentials=folder_of("router", "router-0", cluster=CLUSTER)),
        ProcessSupervisor(),
    )
    started = await router.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(router.stop, 0.0)
        workers = {
            name: await stack.enter_async_context(make(tiny, role, name, started.internal_address))
            for role, name in NAMES
        }
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{started.http_address}", timeout=DEADLINE_S)
        )
        client = Client(http, started.grpc_address)

        async def present() -> dict[str, int]:
            info = (await http.get("/server_info")).json()
            return {w["worker_id"]: w["placed"] for w in info["workers"] if w["ready"]}

        async def all_there() -> bool:
            return len(await present()) == len(NAMES)

        async def placed() -> list[str]:
            return [name for name, k in (await present()).items() if k and "decode" in name]

        async def gone() -> bool:
            return at[0] not in await present()

        await until_answered(all_there)
        answer = asyncio.create_task(client.generate(ids, TOKENS))
        at = await until_answered(placed)
        await until(lambda: workers[at[0]]._context.metrics.step._sum.get())
        revoke(at[0])
        assert (await answer)["output_ids"] == expected
        await until_answered(gone)
        page = (await http.get("/metrics")).text
        assert (
            f'baton_router_retries_total{{dp_group="0",dp_rank="{at[0][-1]}",worker="{at[0]}"}} 1'
            in page
        )
        assert (await client.generate(ids, 4))["output_ids"] == expected[:4]
        for name, worker in workers.items():
            assert name == at[0] or not await findings(worker)
