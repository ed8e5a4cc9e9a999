"""State between two processes on device memory, over NIXL with several settings of UCX and gRPC.

Each setting has a process of its own, because UCX reads its environment once. Both sides' pools lie
on one GPU; every hand-off is made once with checksums, which the receiver compares.
"""

import multiprocessing
import os
from functools import partial
from multiprocessing.connection import Connection
from statistics import median

import uvloop

from baton.bench.gpu.parts import Part
from baton.bench.transfer.pools import CASES, TransferCase
from baton.bench.transfer.sides import joined
from baton.deploy.certs.cluster_credentials import ClusterCredentials, cluster_credentials

SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    {"UCX_TLS": "cuda_copy,cuda_ipc,sm,tcp"},
    {"UCX_TLS": "tcp,cuda_copy"},
    {"UCX_TLS": "tcp"},
)
_MOVED = ("state_144mb", "kv_16k")
_REPEATS = 5
_MOST_S = 25.0  # of one setting; the start of two processes with torch takes most of it
_DRY_S = 200.0


def device_transfer(part: Part) -> None:
    """Measure with each setting, a line a case."""
    for setting in SETTINGS[:1] if part.dry else SETTINGS:
        told = " ".join(f"{name}={value}" for name, value in setting.items()) or "as it is"
        part.row(told, partial(_measure_apart, setting, told, part))


def _measure_apart(setting: dict[str, str], told: str, part: Part) -> None:
    """Measure in another process, which begins with `setting` in its environment."""
    most_s = _DRY_S if part.dry else _MOST_S
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    os.environ |= setting
    # Not a daemon: it has a child of its own.
    process = context.Process(target=_measured, args=(sender, str(part.device), not setting))
    process.start()
    sender.close()
    for name in setting:
        del os.environ[name]
    try:
        while receiver.poll(most_s):
            what, value, failed = receiver.recv()
            part.add(f"{told}: {what}", value, failed=failed)
        part.add(told, f"stopped after {most_s:.0f} s", failed=True)
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()


def _measured(tell: Connection, device: str, all_channels: bool) -> None:
    """Send (what, value, failed) of each case."""
    cases = [case for case in CASES if case.name in _MOVED]
    try:
        with cluster_credentials(None) as certificates:
            uvloop.run(_moved(tell, device, all_channels, cases, certificates))
    except Exception as error:  # NIXL and UCX may raise anything; the line says what
        tell.send(("", f"{type(error).__name__}: {error}"[:200], True))


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


def _rate(nbytes: int, seconds: list[float]) -> str:
    return f"{nbytes / median(seconds) / 1e9:.2f} GB/s"
