"""State over TLS: two ends whose certificates one CA has signed, and nobody else."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from grpc import aio
from transfer.layouts import PAGES, SLOTS, Pools
from transfer.wires import SOURCE, TARGET, TOKENS, channel_context

from baton.rpc.tls import Tls
from baton.transfer.channels.grpc.channel import GrpcChannel
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import cut_kv, cut_state
from baton.transfer.tickets import Ticket, TicketTable

DEADLINE_S = 60.0


def self_signed(folder: Path) -> Tls:
    """A certificate that is its own CA."""
    folder.mkdir()
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "1", "-subj", "/CN=baton", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", str(key), "-out", str(cert)]  # fmt: skip
    subprocess.run(made, check=True, capture_output=True, timeout=DEADLINE_S)
    return Tls(cert, key, cert)


@asynccontextmanager
async def serving(tls: Tls) -> AsyncIterator[tuple[str, TicketTable, Ticket, Pools]]:
    target = Pools(fill=0x5A)
    tickets = TicketTable(target.memory, 0)
    ticket = tickets.grant(
        "r", 1, TARGET, TOKENS, prompt_hash=5, sampling_hash=6,
        on_received=lambda ticket: None, on_broken=lambda ticket, error: None,
    )  # fmt: skip
    server = aio.server()
    GrpcChannel(channel_context(target, tickets)).add_to(server)
    port = server.add_secure_port("127.0.0.1:0", tls.server())
    await server.start()
    yield f"127.0.0.1:{port}", tickets, ticket, target
    await server.stop(None)


async def send(address: str, ticket: Ticket, source: Pools, tls: Tls | None, wait_s: float) -> None:
    context = channel_context(source, TicketTable(source.memory, 0), lease_s=wait_s, tls=tls)
    connection = await GrpcChannel(context).connect_sender(address.encode())
    writing = connection.open(ticket.claim, TARGET, lambda under_way, segments: None)
    try:
        async with asyncio.timeout(DEADLINE_S):
            for segment in (*cut_kv(PAGES, 0, TOKENS), *cut_state(SLOTS)):
                await writing.write(segment, SOURCE)
            await writing.finish()
    finally:
        await connection.close()


async def test_state_arrives_under_certificates_and_without_them_nothing_does(
    tmp_path: Path,
) -> None:
    ours, strangers = self_signed(tmp_path / "ours"), self_signed(tmp_path / "strangers")
    source = Pools()
    source.randomise(torch.Generator().manual_seed(1))
    async with serving(ours) as (address, tickets, ticket, target):
        for tls in (None, strangers):
            with pytest.raises(ChannelError, match=address):
                await send(address, ticket, source, tls, wait_s=2.0)
            assert not tickets.received(ticket.claim).segments
        await send(address, ticket, source, ours, wait_s=DEADLINE_S)
        assert tickets.complete(ticket)
        state = slice(0, SLOTS.components[0].nbytes)
        sent = source.states.storage[SOURCE.slot, state]
        assert torch.equal(target.states.storage[TARGET.slot, state], sent)
