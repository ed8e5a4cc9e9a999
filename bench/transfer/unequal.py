"""Hand-offs and reads between two processes that lead unequal numbers of ranks."""

from collections.abc import Mapping, Sequence

from baton.bench.contract import summarise
from baton.bench.transfer.peer_process import BENCHED
from baton.bench.transfer.pools import TransferCase
from baton.bench.transfer.sides import Sides, joined
from baton.deploy.certs.cluster_credentials import ClusterCredentials

SIZES = ((1, 2), (2, 1), (2, 4), (4, 2))
"""Ranks of the process that writes and reads, and of the other."""
NAMES = ("state_49mb", "kv_1k")


async def measure(
    cases: Sequence[TransferCase], repeats: int, seed: int, certificates: ClusterCredentials
) -> dict[str, float]:
    """Return GB/s without checksums, and the most bytes that arrived over those that the target's
    ranks keep: below 1 where a reader copies to several ranks what came once.

    p1_d2: from one rank to two. read: of a prefix, where the channel pulls.
    """
    chosen = [case for case in cases if case.name in NAMES]
    if not chosen:
        return {}
    found: dict[str, float] = {}
    for here, there in SIZES:
        async with joined(seed, certificates, here, there) as sides:
            rounds = [await _round(sides, chosen, here, there) for _ in range(repeats + 1)]
        found |= summarise(rounds[1:])  # the first touches every page, and connects
    return found


async def _round(
    sides: Sides, cases: Sequence[TransferCase], here: int, there: int
) -> Mapping[str, float]:
    measured: dict[str, float] = {}
    ratios: list[float] = []
    read_ratios: list[float] = []
    for case in cases:
        for channel in BENCHED:
            took = await sides.ours(channel.name, False, case)
            name, needed = f"{channel.name}_p{here}_d{there}", sides.kept_bytes(case, there)
            measured[f"{name}_gb_s_{case.name}"] = needed / took / 1e9
            ratios.append(sides.moved / needed)
            if channel.capabilities.pull:
                took = await sides.read(channel.name, case)
                name, needed = f"{channel.name}_read_p{there}_d{here}", sides.kept_bytes(case, here)
                measured[f"{name}_gb_s_{case.name}"] = needed / took / 1e9
                read_ratios.append(sides.moved / needed)
    measured[f"p{here}_d{there}_bytes_ratio"] = max(ratios)
    return measured | {f"read_p{there}_d{here}_bytes_ratio": max(read_ratios)}
