"""`/control` at a real router: who may ask, and that request and reply pass unchanged."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from router_neighbours import Cluster

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.core.supervised import ProcessSupervisor
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.client.url_control import UrlControl
from baton.deploy.cluster.change_requests import APPLY
from baton.deploy.errors import DeployError, NotRunning, ScaleError
from baton.deploy.messages.control import listening
from baton.deploy.messages.start_progress import StartProgress
from baton.router.control_route import MAX_REQUEST_BYTES

ADMIN, OTHER = new_key(), new_key()


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, part: str, phase: str, fraction: float) -> None:
        self.lines.append(f"{part} {phase} {fraction}")

    def done(self, part: str, detail: str) -> None:
        self.lines.append(f"{part} {detail}")


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


@asynccontextmanager
async def router(folder: Path, control: Path | None, *, keys: bool = True) -> AsyncIterator[str]:
    """The URL of a router whose cluster is run at the socket `control`."""
    write_keys(
        folder / "keys",
        [
            Key("admin", digest_of(ADMIN), frozenset({KeyScope.ADMIN})),
            Key("other", digest_of(OTHER), frozenset({KeyScope.INFER, KeyScope.METRICS})),
        ],
    )
    options: dict[str, Any] = {"api_keys": folder / "keys"} if keys else {}
    async with Cluster(folder, control=control, **options) as cluster:
        yield cluster.http


def grow(arguments: Mapping[str, Any], progress: StartProgress) -> Mapping[str, Any]:
    if not arguments:
        raise ScaleError("decode=0; a cluster needs at least one of each role")
    progress.update("decode-1", "weights", 0.5)
    progress.done("decode-1", "ready")
    return arguments


async def ask(
    url: str, key: str, arguments: Mapping[str, Any], heard: Heard, name: str = "grow"
) -> Mapping[str, Any]:
    client = UrlControl(RouterAddress(url, key))
    return await asyncio.to_thread(client.ask, name, arguments, heard)


async def test_a_request_reaches_the_supervisor_and_progress_and_answer_come_back(
    tmp_path: Path, socket: Path
) -> None:
    heard = Heard()
    with listening(socket, {"grow": grow}, ProcessSupervisor()):
        async with router(tmp_path, socket) as url:
            assert await ask(url, ADMIN, {"decode": 2}, heard) == {"decode": 2}
            assert heard.lines == ["decode-1 weights 0.5", "decode-1 ready"]
            with pytest.raises(DeployError, match="at least one of each role"):
                await ask(url, ADMIN, {}, heard)


async def test_a_key_of_another_scope_none_and_a_router_without_keys_are_refused(
    tmp_path: Path, socket: Path
) -> None:
    with listening(socket, {"grow": grow}, ProcessSupervisor()):
        async with router(tmp_path, socket) as url:
            with pytest.raises(DeployError, match=r"answers 403.*admin"):
                await ask(url, OTHER, {"decode": 2}, Heard())
            with pytest.raises(DeployError, match=r"answers 401"):
                await ask(url, "", {"decode": 2}, Heard())
        async with router(tmp_path, socket, keys=False) as url:
            with pytest.raises(DeployError, match=r"answers 403.*start it with --api-keys"):
                await ask(url, "", {"decode": 2}, Heard())


async def test_a_request_that_may_name_files_is_not_passed_on(tmp_path: Path, socket: Path) -> None:
    with listening(socket, {"apply": grow, "grow": grow}, ProcessSupervisor()):
        async with router(tmp_path, socket) as url:
            with pytest.raises(DeployError, match=r"answers 403.*on the machine where the"):
                await ask(url, ADMIN, {"settings": []}, Heard(), APPLY)
            assert await ask(url, ADMIN, {"decode": 2}, Heard()) == {"decode": 2}


async def test_a_supervisor_that_is_away_or_was_never_there_is_told(
    tmp_path: Path, socket: Path
) -> None:
    async with router(tmp_path, socket) as url:
        with pytest.raises(DeployError, match="the supervisor does not answer"):
            await ask(url, ADMIN, {"decode": 2}, Heard())
    async with router(tmp_path, None) as url:
        with pytest.raises(DeployError, match=r"answers 409.*started by hand"):
            await ask(url, ADMIN, {"decode": 2}, Heard())
    with pytest.raises(NotRunning, match="no router answers"):
        await ask(url, ADMIN, {}, Heard())


async def test_a_request_that_is_too_large_is_refused(tmp_path: Path, socket: Path) -> None:
    with listening(socket, {"grow": grow}, ProcessSupervisor()):
        async with router(tmp_path, socket) as url:
            with pytest.raises(DeployError, match=r"answers 413"):
                await ask(url, ADMIN, {"decode": "x" * MAX_REQUEST_BYTES}, Heard())
