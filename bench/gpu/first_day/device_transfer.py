"""State between two processes on device memory, over NIXL with several settings of UCX and gRPC.

Each setting has a process of its own, because UCX reads its environment once. They start together,
since most of their time is torch's import, and measure by turns. Both sides' pools lie on one GPU;
every hand-off is made once with checksums, which the receiver compares. NIXL is to refuse a setting
that leaves CUDA's memory out.
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from statistics import median

import torch
import uvloop

from baton.bench.gpu.parts import Part
from baton.bench.transfer.pools import CASES, TransferCase
from baton.bench.transfer.sides import joined
from baton.deploy.certs.cluster_credentials import ClusterCredentials, cluster_credentials
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.memory.regions import Span

SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    {"UCX_TLS": "cuda_copy,cuda_ipc,sm,tcp"},
    {"UCX_TLS": "tcp,cuda_copy"},
    {"UCX_TLS": "tcp"},
)
_REFUSED = SETTINGS[-1]
_MOVED = ("state_144mb", "kv_16k")
_REPEATS = 5
_AGENTS = 3
_MOST_S = 25.0  # of one setting's turn; the start of the other side takes most of it
_DRY_S = 200.0


def device_transfer(part: Part) -> None:
    """Measure with each setting, a line a case."""
    settings = SETTINGS[:1] if part.dry else SETTINGS
    started = [(setting, *_started(setting, part)) for setting in settings]
    try:
        for setting, process, pipe in started:
            told = " ".join(f"{name}={value}" for name, value in setting.items()) or "as it is"
            part.row(told, partial(_measure, told, process, pipe, _REFUSED == setting, part))
    finally:
        for _, process, _ in started:
            process.kill()
            process.join()


def _started(setting: dict[str, str], part: Part) -> tuple[SpawnProcess, Connection]:
    """Start a process that begins with `setting` in its environment, and waits for its turn."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    os.environ |= setting
    # Not a daemon: it has a child of its own.
    process = context.Process(target=_measured, args=(theirs, str(part.device), not setting))
    process.start()
    theirs.close()
    for name in setting:
        del os.environ[name]
    return process, ours


def _measure(
    told: str, process: SpawnProcess, pipe: Connection, is_refused: bool, part: Part
) -> None:
    """Give a process its turn, and tell what it says. is_refused: it should say no speed."""
    most_s = _DRY_S if part.dry else _MOST_S
    pipe.send("begin")
    try:
        while pipe.poll(most_s):
            what, value, failed = pipe.recv()
            part.add(f"{told}: {what}", value, failed=failed is not is_refused)
        part.add(told, f"stopped after {most_s:.0f} s", failed=True)
    except EOFError:
        pass
    finally:
        process.kill()


def _measured(pipe: Connection, device: str, all_channels: bool) -> None:
    """Send (what, value, failed) of each case, once it is asked to."""
    cases = [case for case in CASES if case.name in _MOVED]
    torch.empty(1, device=device)  # with what takes long: the device's context
    pipe.recv()
    try:
        with cluster_credentials(None) as certificates:
            uvloop.run(_moved(pipe, device, all_channels, cases, certificates))
    except Exception as error:  # NIXL and UCX may raise anything; the line says what
        pipe.send(("refused", f"{type(error).__name__}: {error}"[:200], True))


async def _moved(
    tell: Connection,
    device: str,
    all_channels: bool,
    cases: list[TransferCase],
    certificates: ClusterCredentials,
) -> None:
    async with joined(1, certificates, where=device) as sides:
        slots = sides.pools.memory.slots
        for case in cases:
            for channel in ("nixl", "grpc") if all_channels else ("nixl",):
                await sides.ours(channel, True, case)  # raises where a checksum is not right
                took = [await sides.ours(channel, False, case) for _ in range(_REPEATS)]
                tell.send((f"{channel} {case.name}", _rate(case.nbytes(slots), took), False))
            raw = [await sides.raw_nixl(case) for _ in range(_REPEATS)]
            tell.send((f"one raw write {case.name}", _rate(case.nbytes(slots), raw), False))
        if all_channels:
            _tell_agents(tell, sides.pools.memory.spans)


def _tell_agents(tell: Connection, spans: Sequence[Span]) -> None:
    """Send what each further agent costs that registers the same pools: a worker has one for each
    stream."""
    agents: list[NixlAgent] = []
    costs = []
    for number in range(_AGENTS):
        free, began = _free(), time.perf_counter()
        agents.append(NixlAgent(f"further-{number}", spans))
        took = 1e3 * (time.perf_counter() - began)
        costs.append(f"{took:.0f} ms and {(free - _free()) >> 20} MiB")
    for agent in agents:
        agent.close()
    nbytes = sum(span.nbytes for span in spans)
    tell.send((f"further agents over {nbytes / 1e9:.1f} GB", "; ".join(costs), False))


def _free() -> int:
    """Return the free bytes of the GPU; 0 without one."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0


def _rate(nbytes: int, seconds: list[float]) -> str:
    return f"{nbytes / median(seconds) / 1e9:.2f} GB/s"
