"""`baton bench transfer`: state between two processes, compared with raw NIXL, gRPC and a copy."""

import random
from collections.abc import Mapping
from statistics import median

import click
import torch
import uvloop

from baton.bench.contract import Report, json_option, repeats_option, seed_option, show, summarise
from baton.bench.transfer import handover, unequal
from baton.bench.transfer.pools import CASES, TransferCase
from baton.bench.transfer.sides import Sides, joined, names
from baton.deploy.certs.cluster_credentials import ClusterCredentials, cluster_credentials
from baton.deploy.process.tuning import keep_freed_memory
from baton.engine.layout.layout import SlotLayout


@click.command("transfer")
@click.option("--case", "chosen", multiple=True, type=click.Choice([case.name for case in CASES]),
              help="Only these cases; all when left out.")  # fmt: skip
@click.option("--hand-overs", type=click.IntRange(0), default=20, show_default=True,
              help="Requests through a cluster, for prefill_to_decode_ms; 0 for none.")  # fmt: skip
@repeats_option
@seed_option
@json_option
def transfer(
    chosen: tuple[str, ...], hand_overs: int, repeats: int, seed: int | None, json_wanted: bool
) -> None:
    """Move state and KV of real models' sizes from one process to another on this machine.

    CHANNEL_gb_s, CHANNEL_share: the median over the cases, without checksums; _full: with them.
    limits, interleaved with ours: one NIXL write of one descriptor, a gRPC stream of 1 MiB messages
    that is dropped at once, with TLS as ours and without (_plain), and a copy within a process.
    bytes_ratio: bytes that arrived, with headers and padding, over those needed.

    CHANNEL_p1_d2_…: between leaders of unequal numbers of ranks, without checksums: GB/s, and the
    bytes over those that the target's ranks keep; read_p2_d1: a prefix is read from two ranks.

    prefill_to_decode_ms: from the last layer at a prefill worker to the launch of the first decode
    step on an idle rank; the message between the two counts as half of the fastest heartbeat's
    round trip.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    keep_freed_memory()  # as in workers; raw gRPC profits from it too
    cases = [case for case in CASES if not chosen or case.name in chosen]
    with cluster_credentials(None) as certificates:
        results, limits = uvloop.run(_measure(cases, repeats, seed, certificates))
    if hand_overs:
        results |= handover.measure(hand_overs, repeats, random.Random(seed))
    config = {
        "cases": [case.name for case in cases],
        "hand_overs": hand_overs,
        "repeats": repeats,
        "seed": seed,
    }
    show(Report("transfer", config, results, limits), json_wanted)


async def _measure(
    cases: list[TransferCase], repeats: int, seed: int, certificates: ClusterCredentials
) -> tuple[dict[str, float], dict[str, float]]:
    rounds = []
    async with joined(seed, certificates) as sides:
        into = torch.ones(max(case.nbytes(_slots(sides)) for case in cases), dtype=torch.uint8)
        for number in range(repeats + 1):
            measured = await _round(sides, cases, into)
            if number:  # the first touches every page, and connects
                rounds.append(measured)
    results = _summed([ours for ours, _ in rounds])
    results |= await unequal.measure(cases, repeats, seed, certificates)
    return results, summarise([limit for _, limit in rounds])


def _slots(sides: Sides) -> SlotLayout:
    return sides.pools.memory.slots


async def _round(
    sides: Sides, cases: list[TransferCase], into: torch.Tensor
) -> tuple[dict[str, float], dict[str, float]]:
    """Measure GB/s and shares of every case, one after another."""
    ours: dict[str, float] = {}
    limits: dict[str, float] = {}
    ratios: list[float] = []
    for case in cases:
        size = case.nbytes(_slots(sides))
        raw = {
            "nixl": await sides.raw_nixl(case),
            "grpc": await sides.raw_grpc(case, tls=True),
            "grpc_plain": await sides.raw_grpc(case, tls=False),
        }
        limits |= {f"raw_{name}_gb_s_{case.name}": size / s / 1e9 for name, s in raw.items()}
        copy_s = sides.memcpy(case, into)
        limits[f"memcpy_gb_s_{case.name}"] = size / copy_s / 1e9
        for channel, verify in names():
            took = await sides.ours(channel, verify, case)
            full = "_full" if verify else ""
            ours[f"{channel}{full}_gb_s_{case.name}"] = size / took / 1e9
            ours[f"{channel}{full}_share_{case.name}"] = raw.get(channel, copy_s) / took
            ratios.append(sides.moved / size)
    return ours | {"bytes_ratio": max(ratios)}, limits


def _summed(rounds: list[Mapping[str, float]]) -> dict[str, float]:
    """Return each case's median and spread, and the median over the cases."""
    each = summarise(rounds)
    whole: dict[str, float] = {}
    for channel, verify in names():
        for unit in ("gb_s", "share"):
            key = f"{channel}{'_full' if verify else ''}_{unit}"
            whole[key] = median(
                value for name, value in each.items()
                if name.startswith(f"{key}_") and not name.endswith("_spread")
            )  # fmt: skip
    return whole | each
