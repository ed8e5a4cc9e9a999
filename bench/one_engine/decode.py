"""`baton bench decode`: one engine's decode steps against the machine's limits."""

import random
from typing import Any

import click
import torch

from baton.bench.contract import (
    Report,
    json_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.bench.one_engine.model_options import Subject, model_options
from baton.bench.one_engine.roofline import Machine
from baton.bench.one_engine.timed_engine import TimedEngine
from baton.bench.peers.peers import Runnable
from baton.engine.engine import Engine
from baton.kernels.dispatch import select
from baton.kernels.kernel_choice import KernelChoice


@click.command("decode")
@model_options(batches="1,8,32", prompt_len=64)
@click.option("--steps", type=click.IntRange(8), default=24, show_default=True)
@repeats_option
@seed_option
@json_option
def decode(steps: int, json_wanted: bool, **options: Any) -> None:
    """Measure greedy decode steps at several batch sizes, in process.

    limit_share: the time that the limits allow over the time of a step. A product's limit is the
    slower of its weight's bytes and its arithmetic; that of states and KV is their bytes.
    bandwidth_share: by bytes alone.
    """
    subject = Subject.of(options)
    engine = subject.load()
    timed = TimedEngine(engine, random.Random(subject.seed))
    peers = subject.load_peers()
    ours: list[dict[str, float]] = []
    limits: list[dict[str, float]] = []
    for batch in subject.batches:  # warm up: build what is built at first use
        timed.decode_step(batch, subject.prompt_len, 1)
    for _ in range(subject.repeats):
        result, limit = _round(subject, engine, timed, steps)
        ours.append(result)
        limits.append(limit)
        peers.measure(lambda peer: _peer_round(subject, peer, timed, steps))
    settings = {**subject.settings(), "batches": list(subject.batches), "steps": steps}
    show(Report("decode", settings, summarise(ours), summarise(limits), peers.close()), json_wanted)


def _round(
    subject: Subject, engine: Engine, timed: TimedEngine, steps: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Measure each batch size, and the limits right after it."""
    kernels = select(torch.device("cpu"), subject.torch_dtype, KernelChoice.AUTO)
    machine = Machine(engine.plan.model_config, subject.weight_dtype, kernels)
    results: dict[str, float] = {}
    limits = {"read_gb_s": machine.read_bytes_s / 1e9}
    for batch in subject.batches:
        seconds = timed.decode_step(batch, subject.prompt_len, steps)
        roofline = machine.decode_step(batch, subject.prompt_len + steps // 2)
        results[f"tok_s_b{batch}"] = batch / seconds
        results[f"step_ms_b{batch}"] = seconds * 1e3
        results[f"limit_share_b{batch}"] = roofline.seconds / seconds
        results[f"bandwidth_share_b{batch}"] = roofline.bandwidth_seconds / seconds
        limits[f"step_ms_b{batch}"] = roofline.seconds * 1e3
        limits[f"bandwidth_step_ms_b{batch}"] = roofline.bandwidth_seconds * 1e3
    return results, limits


def _peer_round(
    subject: Subject, peer: Runnable, timed: TimedEngine, steps: int
) -> dict[str, float]:
    results: dict[str, float] = {}
    for batch in subject.batches:
        prompts = [timed.prompt(subject.prompt_len) for _ in range(batch)]
        seconds = peer.decode_step(prompts, max(4, steps // 3))
        results[f"tok_s_b{batch}"] = batch / seconds
        results[f"step_ms_b{batch}"] = seconds * 1e3
    return results
