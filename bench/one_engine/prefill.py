"""`baton bench prefill`: one engine's prompts against the machine's matrix products."""

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

_TTFT_LEN = 512


@click.command("prefill")
@model_options(batches="1,8", prompt_len=256)
@repeats_option
@seed_option
@json_option
def prefill(json_wanted: bool, **options: Any) -> None:
    """Measure prompts of one length, alone and several at once, in process.

    ttft_ms_512: from submitting a prompt of 512 tokens to its first token. limit_share: the time of
    the weights' products at their measured rates over the time of the prompts.
    """
    subject = Subject.of(options)
    engine = subject.load()
    timed = TimedEngine(engine, random.Random(subject.seed))
    peers = subject.load_peers()
    timed.prefill(1, subject.prompt_len)
    ours: list[dict[str, float]] = []
    limits: list[dict[str, float]] = []
    for _ in range(subject.repeats):
        result, limit = _round(subject, engine, timed)
        ours.append(result)
        limits.append(limit)
        peers.measure(lambda peer: _peer_round(subject, peer, timed))
    settings = {**subject.settings(), "batches": list(subject.batches)}
    show(
        Report("prefill", settings, summarise(ours), summarise(limits), peers.close()), json_wanted
    )


def _round(
    subject: Subject, engine: Engine, timed: TimedEngine
) -> tuple[dict[str, float], dict[str, float]]:
    kernels = select(torch.device("cpu"), subject.torch_dtype, KernelChoice.AUTO)
    machine = Machine(engine.plan.model_config, subject.weight_dtype, kernels)
    results: dict[str, float] = {}
    limits = {"read_gb_s": machine.read_bytes_s / 1e9}
    for batch in subject.batches:
        tokens = batch * subject.prompt_len
        seconds = timed.prefill(batch, subject.prompt_len).last_s
        allowed = machine.prompt(tokens, batch).seconds
        results[f"tok_s_b{batch}"] = tokens / seconds
        results[f"limit_share_b{batch}"] = allowed / seconds
        limits[f"tok_s_b{batch}"] = tokens / allowed
    results["ttft_ms_512"] = timed.prefill(1, _TTFT_LEN).first_s * 1e3
    return results, limits


def _peer_round(subject: Subject, peer: Runnable, timed: TimedEngine) -> dict[str, float]:
    results: dict[str, float] = {}
    for batch in subject.batches:
        prompts = [timed.prompt(subject.prompt_len) for _ in range(batch)]
        results[f"tok_s_b{batch}"] = batch * subject.prompt_len / peer.prefill(prompts)
    results["ttft_ms_512"] = peer.prefill([timed.prompt(_TTFT_LEN)]) * 1e3
    return results
