"""Credentials from files, over real TLS."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from certificates import CLUSTER, authority, credentials_of, folder_of
from grpc import aio

from baton.core.errors import ConfigError, PeerLostError
from baton.proto.common_pb2 import DECODE, PREFILL, Role, WorkerIdentity
from baton.rpc.access import caller
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import AUTHORITIES, CERT, KEY, Credentials
from baton.rpc.identity import Identity, ProcessRole

DEADLINE_S = 60.0
METHOD = "/tests.Who/AmI"
RANK = Identity(ProcessRole.DECODE, "d0", CLUSTER)


async def _who(messages: object, context: aio.ServicerContext) -> None:
    """Answer with the name of the caller and the serial number that the context shows."""
    proven = caller(context)
    assert proven is not None
    await context.write(proven.dns_name.encode())


@asynccontextmanager
async def serving(credentials: Credentials) -> AsyncIterator[str]:
    server = aio.server()
    handler = grpc.stream_stream_rpc_method_handler(_who)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tests.Who", {"AmI": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", credentials.server())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def ask(channel: aio.Channel) -> str:
    async with channel:
        reply: bytes = await channel.unary_unary(METHOD)(b"", timeout=DEADLINE_S)
        return reply.decode()


def own_folder(tmp_path: Path, identity: Identity = RANK, signed_by: str = "ours") -> Path:
    authority(signed_by).issue(identity, tmp_path / "own")
    return tmp_path / "own"


async def test_both_sides_learn_from_the_certificate_whom_they_speak_to() -> None:
    rank, prefill = credentials_of("decode", "d0"), credentials_of("prefill", "p0")
    async with serving(rank) as address:
        peer = WorkerIdentity(worker_id="d0", role=DECODE, address=address)
        assert await ask(prefill.dial_worker(peer, OPTIONS)) == f"p0.prefill.{CLUSTER}.baton"


@pytest.mark.parametrize(
    ("worker_id", "role"),
    [("d1", DECODE), ("d0", PREFILL)],
)
async def test_another_worker_at_the_address_is_not_spoken_to(worker_id: str, role: Role) -> None:
    async with serving(credentials_of("decode", "d0")) as address:
        peer = WorkerIdentity(worker_id=worker_id, role=role, address=address)
        with pytest.raises(aio.AioRpcError) as refused:
            await ask(credentials_of("prefill", "p0").dial_worker(peer, OPTIONS))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_only_a_router_is_taken_for_one() -> None:
    prefill = credentials_of("prefill", "p0")
    async with serving(credentials_of("router", "router-3")) as address:
        assert await ask(prefill.dial_router(address, OPTIONS)) == f"p0.prefill.{CLUSTER}.baton"
    async with serving(credentials_of("decode", "router")) as address:
        with pytest.raises(aio.AioRpcError):
            await ask(prefill.dial_router(address, OPTIONS))


@pytest.mark.parametrize("signed_by", [None, "strangers"])
async def test_without_a_certificate_of_the_authority_nobody_gets_in(signed_by: str | None) -> None:
    authorities = (folder_of("decode", "d0") / AUTHORITIES).read_bytes()
    chain: tuple[bytes | None, bytes | None] = (None, None)
    if signed_by is not None:  # it trusts ours, and calls itself what it likes
        folder = folder_of("router", "router-0", signed_by)
        chain = ((folder / KEY).read_bytes(), (folder / CERT).read_bytes())
    stranger = grpc.ssl_channel_credentials(authorities, *chain)
    options = (("grpc.ssl_target_name_override", RANK.dns_name),)
    async with serving(credentials_of("decode", "d0")) as address:
        with pytest.raises(aio.AioRpcError) as refused:
            await ask(aio.secure_channel(address, stranger, options=options))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(aio.AioRpcError):
            await ask(aio.insecure_channel(address))


async def test_new_files_count_for_the_next_connection_on_both_sides(tmp_path: Path) -> None:
    """Ours are replaced by strangers' while a channel is open: it goes on, and new ones need those
    of the strangers."""
    folder = own_folder(tmp_path)
    server, ours, theirs = (
        Credentials(folder), credentials_of("prefill", "p0"),
        credentials_of("prefill", "p0", "strangers"),
    )  # fmt: skip
    async with serving(server) as address:
        peer = WorkerIdentity(worker_id="d0", role=DECODE, address=address)
        with pytest.raises(aio.AioRpcError):
            await ask(theirs.dial_worker(peer, OPTIONS))
        async with ours.dial_worker(peer, OPTIONS) as channel:
            whoami = channel.unary_unary(METHOD)
            before = await whoami(b"", timeout=DEADLINE_S)
            authority("strangers").issue(RANK, folder)
            assert await ask(theirs.dial_worker(peer, OPTIONS))
            assert await whoami(b"", timeout=DEADLINE_S) == before
        async with serving(theirs) as there:
            found = WorkerIdentity(worker_id="p0", role=PREFILL, address=there)
            assert await ask(server.dial_worker(found, OPTIONS)) == RANK.dns_name


async def test_half_written_files_are_not_used(tmp_path: Path) -> None:
    folder = own_folder(tmp_path)
    credentials = Credentials(folder)
    prefill = credentials_of("prefill", "p0")
    async with serving(credentials) as address:
        peer = WorkerIdentity(worker_id="d0", role=DECODE, address=address)
        other = folder_of("decode", "d0", "strangers")
        for torn in (
            lambda: shutil.copy(other / KEY, folder / KEY),
            lambda: (folder / CERT).write_bytes(b""),
            lambda: (folder / CERT).unlink(),
        ):
            torn()
            assert await ask(prefill.dial_worker(peer, OPTIONS))


async def test_files_of_another_process_are_not_used(tmp_path: Path) -> None:
    folder = own_folder(tmp_path)
    credentials = Credentials(folder)
    async with serving(credentials) as address:
        authority().issue(Identity(ProcessRole.DECODE, "d1", CLUSTER), folder)
        peer = WorkerIdentity(worker_id="d0", role=DECODE, address=address)
        assert await ask(credentials_of("prefill", "p0").dial_worker(peer, OPTIONS))
    assert credentials.identity == RANK


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / KEY).chmod(0o640), "chmod 600"),
        (lambda folder: (folder / KEY).unlink(), KEY),
        (lambda folder: (folder / CERT).write_text("no PEM"), "PEM"),
        (lambda folder: shutil.copy(folder_of("decode", "d1") / KEY, folder / KEY), "not the key"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, spoil: object, named: str) -> None:
    folder = own_folder(tmp_path)
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=named) as refused:
        Credentials(folder)
    assert str(folder) in str(refused.value)


NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of root and other users")
@pytest.mark.parametrize(
    ("owner", "mode", "read"),
    [(0, 0o440, True), (0, 0o640, True), (0, 0o444, False), (0, 0o460, False),
     (NOBODY, 0o440, False), (NOBODY, 0o400, True)],
)  # fmt: skip
def test_a_key_of_root_may_be_read_by_the_group_of_the_process(
    owner: int, mode: int, read: bool
) -> None:
    """Kubernetes mounts a pod's secrets so. Any other key is its owner's alone."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = own_folder(Path(parent))
        for path in (folder, *folder.iterdir()):
            os.chown(path, owner, NOBODY)
            path.chmod(mode if path.name == KEY else 0o755)
        group = os.getegid()
        try:
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
            if read:
                assert Credentials(folder).identity == RANK
            else:
                with pytest.raises(ConfigError, match=f"mode {mode:o}.*chmod 600"):
                    Credentials(folder)
        finally:
            os.seteuid(0)
            os.setegid(group)


def test_no_text_about_credentials_shows_the_key(tmp_path: Path) -> None:
    folder = own_folder(tmp_path)
    credentials = Credentials(folder)
    secret = (folder / KEY).read_text().splitlines()[1]
    shown = f"{credentials!r} {credentials} {credentials._material!r} {vars(credentials)!r}"
    assert secret not in shown and str(folder) in shown
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "peer",
    [
        WorkerIdentity(worker_id="d0", address="127.0.0.1:1"),
        WorkerIdentity(worker_id="d0", role=DECODE),
        WorkerIdentity(worker_id="d0.decode.c.baton", role=DECODE, address="127.0.0.1:1"),
    ],
)
async def test_a_peer_without_role_address_or_name_is_not_dialled(peer: WorkerIdentity) -> None:
    with pytest.raises(PeerLostError, match="d0"):
        credentials_of("prefill", "p0").dial_worker(peer, OPTIONS)
    await asyncio.sleep(0)
