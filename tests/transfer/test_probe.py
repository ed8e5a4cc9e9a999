"""Probes of the way between two workers: what they write, what they measure, what is told of it."""

import logging

import numpy as np
import pytest
import torch
from on_gpu import on_gpu
from transfer.layouts import Pools
from transfer.wires import connected

from baton.transfer.channels.nixl import agent, probe
from baton.transfer.channels.nixl.probe import LEAST_BLOCK, RATE_BYTES, SLOW, Probe, tell_rate
from baton.transfer.errors import ChannelError
from baton.transfer.memory.regions import EngineMemory, Span

MIB = 1 << 20


class Agent:
    """A neighbour that notes what is written, and how often it must be asked before it is there."""

    def __init__(self, asked: int = 3) -> None:
        self.rows: list[list[tuple[int, ...]]] = []
        self.asked = asked

    def write_parts(self, source: np.ndarray, target: np.ndarray, peer: str, note: bytes) -> int:
        assert source[:, 1].tolist() == target[:, 1].tolist() and peer == "d0"
        self.rows.append([tuple(map(int, row)) for row in target])
        return 1

    def done(self, write: int) -> bool:
        self.asked -= 1
        return self.asked <= 0


def span(block_bytes: int, address: int = 4096, device: int | None = 0) -> Span:
    return Span(address, block_bytes, 3, device)


def clock(*times: float):  # type: ignore[no-untyped-def]
    left = iter(times)
    return lambda: next(left)


@pytest.mark.parametrize("block", [LEAST_BLOCK, 300_000, MIB, 143 * MIB])
def test_the_bandwidth_is_that_of_many_bytes_into_the_padding_block(block: int) -> None:
    ours, theirs = span(block, 1 << 40, 1), span(block, 1 << 41, 2)
    fake = Agent()
    measured = Probe(fake, "d0", ours, theirs, clock(10.0, 10.5)).bytes_per_s("d0")  # type: ignore[arg-type]
    (rows,) = fake.rows
    assert {(address, device) for address, _, device in rows} == {(theirs.address, 2)}
    assert all(size <= theirs.block_bytes for _, size, _ in rows), "beyond the padding block"
    moved = sum(size for _, size, _ in rows)
    assert RATE_BYTES // 2 < moved <= RATE_BYTES and measured == moved / 0.5


def test_small_blocks_are_not_measured_and_only_reached() -> None:
    fake = Agent()
    tried = Probe(fake, "d0", span(LEAST_BLOCK - 1), span(MIB))  # type: ignore[arg-type]
    assert tried.bytes_per_s("d0") is None
    tried.reach("d0")
    assert fake.rows == [[(4096, probe.REACH_BYTES, 0)]]


def test_a_peer_that_is_not_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "REACH_S", 0.01)
    fake = Agent(asked=10**9)
    with pytest.raises(ChannelError, match="cannot reach worker d0: a probe of 64 bytes"):
        Probe(fake, "d0", span(MIB), span(MIB)).reach("worker d0")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "one_host", "level"),
    [
        (0.99 * SLOW, True, logging.WARNING),
        (SLOW, True, logging.INFO),
        (0.3e9, False, logging.INFO),
    ],
)
def test_a_slow_way_on_one_host_is_warned_of(
    rate: float, one_host: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tell_rate("d0", rate, one_host=one_host)
    (record,) = caplog.records
    assert record.levelno == level and f"{rate / 1e9:.1f} GB/s" in record.getMessage()


@pytest.mark.parametrize("on_device", [True, False])
async def test_only_between_gpus_is_the_bandwidth_measured(
    on_device: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NIXL is told that the GPU's memory is the host's, which it is here."""
    monkeypatch.setattr(agent, "_memory", lambda span: "DRAM")
    monkeypatch.setattr(probe, "LEAST_BLOCK", 1)
    caplog.set_level(logging.INFO, probe.__name__)
    sides = (Pools(), Pools(fill=0x5A))
    if on_device:
        for side in sides:
            for pool in (side.states, side.pages):
                pool.storage = on_gpu(pool.storage)
            side.memory = EngineMemory(side.states, side.pages)
    async with connected("nixl", sides=sides):
        told = [record.getMessage() for record in caplog.records if record.name == probe.__name__]
    assert len(told) == on_device and all("GB/s" in line for line in told)
    ours, theirs = ([side.states.storage, side.pages.storage] for side in sides)
    for target, source in zip(theirs, ours, strict=True):
        written = target.cpu()[0, : probe.REACH_BYTES]
        assert torch.equal(written, source.cpu()[0, : probe.REACH_BYTES]), "not reached"
        assert bool((target.cpu()[1:] == 0x5A).all()), "written beside the padding block"
