"""Connections that are kept for the next call."""

from pathlib import Path

import pytest
from certificates import CLUSTER, authority, credentials_of
from rpc.test_credentials import METHOD, serving

from baton.core.errors import PeerLostError
from baton.proto.common_pb2 import DECODE, WorkerIdentity
from baton.rpc.credentials import Credentials
from baton.rpc.identity import Identity, ProcessRole
from baton.rpc.peer_channels import PeerChannels

DEADLINE_S = 60.0


async def answered(peers: PeerChannels, peer: WorkerIdentity) -> bool:
    channel = await peers.to(peer)
    return bool(await channel.unary_unary(METHOD)(b"", timeout=DEADLINE_S))


async def test_a_second_call_finds_the_connection_of_the_first() -> None:
    peers = PeerChannels(credentials_of("prefill", "p0"))
    async with serving(credentials_of("decode", "d0")) as address:
        peer = WorkerIdentity(worker_id="d0", incarnation=1, role=DECODE, address=address)
        assert await answered(peers, peer)
        first = await peers.to(peer)
        assert await answered(peers, peer) and await peers.to(peer) is first
    await peers.close()


async def test_a_worker_that_came_back_elsewhere_is_called_there() -> None:
    peers = PeerChannels(credentials_of("prefill", "p0"))
    for incarnation in (1, 2):
        async with serving(credentials_of("decode", "d0")) as address:
            peer = WorkerIdentity(
                worker_id="d0", incarnation=incarnation, role=DECODE, address=address
            )
            assert await answered(peers, peer)
    assert len(peers._open) == 1
    await peers.close()


async def test_a_new_certificate_makes_a_new_connection(tmp_path: Path) -> None:
    identity = Identity(ProcessRole.PREFILL, "p0", CLUSTER)
    authority().issue(identity, tmp_path / "own")
    peers = PeerChannels(Credentials(tmp_path / "own"))
    async with serving(credentials_of("decode", "d0")) as address:
        peer = WorkerIdentity(worker_id="d0", role=DECODE, address=address)
        first = await peers.to(peer)
        authority().issue(identity, tmp_path / "own")
        assert await peers.to(peer) is not first
        assert await answered(peers, peer)
    await peers.close()


async def test_whom_nobody_can_dial_is_named() -> None:
    peers = PeerChannels(credentials_of("prefill", "p0"))
    with pytest.raises(PeerLostError, match="d0"):
        await peers.to(WorkerIdentity(worker_id="d0", role=DECODE))
