"""Rotation and revocation over real connections: 64 streams between nine processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc import aio

from baton.core.errors import PeerLostError
from baton.deploy.certs.authority_folder import AuthorityFolder
from baton.rpc import credentials as credentials_module
from baton.rpc import file_watcher
from baton.rpc.access import AccessInterceptor
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials
from baton.rpc.identity import Identity, ProcessRole

DEADLINE_S = 60.0
ROUTERS, STREAMS_EACH = 8, 8
METHOD = "/baton.v1.Rank/Session"
CLUSTER = "here"
RANK = Identity(ProcessRole.DECODE, "decode-0", CLUSTER)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at files without a pause; what is tested does not depend on it."""
    monkeypatch.setattr(file_watcher, "RECHECK_S", 0.0)
    monkeypatch.setattr(credentials_module, "CHECK_S", 0.05)


@pytest.fixture
def authority(tmp_path: Path) -> AuthorityFolder:
    """The authority of one rank and of all routers."""
    made = AuthorityFolder.create(tmp_path / "authority", CLUSTER)
    made.issue(ProcessRole.DECODE, "decode-0", 1)
    for number in range(ROUTERS):
        made.issue(ProcessRole.ROUTER, f"router-{number}", 1)
    return made


@dataclass(frozen=True)
class Process:
    """One process with its certificate, which looks at its files."""

    credentials: Credentials

    @asynccontextmanager
    async def calling(
        self, address: str, *, wait: bool = True
    ) -> AsyncIterator[aio.StreamStreamCall]:
        """A session with the rank at `address`, on a connection of its own.

        wait: try again where a handshake fails, as it may on a slow machine. It has no deadline of
        its own: a slow machine may take a minute for all that happens while it is open.
        """
        options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        async with self.credentials.dial(address, RANK.dns_name, options) as channel:
            call = channel.stream_stream(METHOD)(wait_for_ready=wait)
            try:
                yield call
            finally:
                call.cancel()


@asynccontextmanager
async def process(
    authority: AuthorityFolder, role: ProcessRole, name: str
) -> AsyncIterator[Process]:
    credentials = Credentials(authority.folder / role / name)
    watching = asyncio.create_task(credentials.watch())
    yield Process(credentials)
    watching.cancel()


async def _echo(
    messages: AsyncIterator[bytes], context: aio.ServicerContext
) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


@asynccontextmanager
async def serving(rank: Process) -> AsyncIterator[str]:
    """The rank's server, which sends each message back."""
    server = aio.server(interceptors=[AccessInterceptor(rank.credentials)], options=OPTIONS)
    service, method = METHOD[1:].split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_secure_port("127.0.0.1:0", rank.credentials.server())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@dataclass(frozen=True)
class Sessions:
    """Every router's sessions with one rank."""

    address: str
    rank: Process
    routers: list[Process]
    calls: list[list[aio.StreamStreamCall]]  # by router

    async def echo(self, *routers: int) -> None:
        """Send a message on each stream of these routers, of all without any, and read it back."""
        async with asyncio.timeout(DEADLINE_S):
            for number in routers or range(ROUTERS):
                for call in self.calls[number]:
                    await call.write(b"hello")
                    assert await call.read() == b"hello"

    async def may_call(self, number: int) -> bool:
        """Return whether a new connection of a router's opens a session."""
        async with self.routers[number].calling(self.address) as call:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await call.write(b"new")
                    return bool(await call.read() == b"new")
            except (aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                return False


@asynccontextmanager
async def sessions(authority: AuthorityFolder) -> AsyncIterator[Sessions]:
    async with AsyncExitStack() as stack:
        rank = await stack.enter_async_context(process(authority, RANK.role, RANK.name))
        address = await stack.enter_async_context(serving(rank))
        routers = [
            await stack.enter_async_context(process(authority, ProcessRole.ROUTER, f"router-{n}"))
            for n in range(ROUTERS)
        ]
        calls = [
            [await stack.enter_async_context(each.calling(address)) for _ in range(STREAMS_EACH)]
            for each in routers
        ]
        yield Sessions(address, rank, routers, calls)


async def ended(call: aio.StreamStreamCall) -> grpc.StatusCode:
    async with asyncio.timeout(DEADLINE_S):
        code: grpc.StatusCode = await call.code()
        return code


async def test_a_rotation_loses_none_of_64_streams(authority: AuthorityFolder) -> None:
    old = Path(authority.folder / "old")
    async with sessions(authority) as all_:
        await all_.echo()
        first = (authority.folder / "ca.crt").read_bytes()
        assert authority.rotate() is not None
        await all_.echo()
        assert await all_.may_call(0)
        old.mkdir()
        for name in ("tls.crt", "tls.key", "ca.crt"):  # a router that misses the second step
            content = (authority.folder / "router" / "router-1" / name).read_bytes()
            (old / name).touch(mode=0o600)
            (old / name).write_bytes(content)
        late = Process(Credentials(old))
        assert authority.rotate() is not None
        await all_.echo()
        assert await all_.may_call(1)
        async with late.calling(all_.address) as call:
            async with asyncio.timeout(DEADLINE_S):
                await call.write(b"late")
                assert await call.read() == b"late", "both authorities count until the last step"
        assert authority.rotate() is None
        await all_.echo()
        assert await all_.may_call(2)
        async with late.calling(all_.address, wait=False) as call:
            assert await ended(call) is grpc.StatusCode.UNAVAILABLE
        trusted = (authority.folder / "router" / "router-0" / "ca.crt").read_bytes()
        assert first not in trusted


async def test_a_revoked_process_loses_its_streams_and_nobody_else_does(
    authority: AuthorityFolder,
) -> None:
    async with sessions(authority) as all_:
        await all_.echo()
        authority.revoke(ProcessRole.ROUTER, "router-3")
        codes = {await ended(call) for call in all_.calls[3]}
        assert codes == {grpc.StatusCode.UNAVAILABLE}
        await all_.echo(*(n for n in range(ROUTERS) if n != 3))
        assert not await all_.may_call(3)
        assert await all_.may_call(4)


async def test_nobody_stays_connected_to_a_revoked_server_or_connects_to_it(
    authority: AuthorityFolder,
) -> None:
    async with sessions(authority) as all_, AsyncExitStack() as stack:
        await all_.echo()
        first = all_.routers[0].credentials
        edition = first.edition
        kept = await stack.enter_async_context(first.dial(all_.address, RANK.dns_name, OPTIONS))
        # The revoked one's own folder has no list: it goes on serving, as a thief would.
        (authority.folder / RANK.role / RANK.name).rename(authority.folder / "stolen")
        for router in all_.routers:
            folder = authority.folder / "router" / router.credentials.identity.name
            (folder / "revoked").write_text(f"{RANK.dns_name}\n")
        for calls in all_.calls:
            for call in calls:
                assert await ended(call) is grpc.StatusCode.UNAVAILABLE
        again = kept.stream_stream(METHOD)(timeout=DEADLINE_S)
        assert await ended(again) is grpc.StatusCode.UNAVAILABLE, "the channel connects again"
        assert first.edition != edition, "kept channels are of another edition"
        with pytest.raises(PeerLostError, match="was revoked"):
            async with all_.routers[0].calling(all_.address):
                pass
