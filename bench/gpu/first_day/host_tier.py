"""The host's tier of an engine on a GPU: prefixes that come back from host memory give the answers
that they gave before; how fast copies are, how soon they stop, and what steps notice of them.
"""

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from baton.bench.gpu.device_engine import options_of
from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.first_day.same_tokens import differing
from baton.bench.gpu.first_day.watched import percentile, watched_waits
from baton.bench.gpu.models import FEW_LAYERS, DeviceWeights, write_config
from baton.bench.gpu.parts import Part
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import ready_model
from baton.engine.engine import Engine
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.models.family_table import configured_model
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig
from baton.engine.tiers.block_copier import PIECE_BYTES, BlockCopier, Blocks
from baton.engine.tiers.host_tier import HostTier

_GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
_LENGTHS = (70, 90, 130)  # tokens of the prompts
_GRID = 16  # tokens between snapshots
_COPIED = 1 << 30  # bytes of each kind of block, of copies that are timed
_MEMORY = 16 << 30  # of their engine
_SAVED_S = 30.0  # that copies may take
_ROWS = 16  # that decode beside copies
_STEPS = 150
_STOP_S = 0.05  # in which a copy should end that is stopped; a piece takes a millisecond


class _AlwaysSooner(FetchCost):
    """Copying back is always sooner: small models compute a prompt in no time."""

    def sooner(self, nbytes: int, computing_s: float) -> bool:
        """See `FetchCost`."""
        return True


def host_tier(part: Part) -> None:
    """Look at each family, then at copies of a size that are timed, alone."""
    rows: dict[str, Callable[[], None]] = {}
    for config in FEW_LAYERS:
        what = f"{config['model_type']}: recalled from the host"
        rows[what] = partial(_tell_recalled, config, what, part)
    side_by_side(part, rows)
    side_by_side(part, {"copies": partial(_tell_copies, part)})


def _tell_recalled(config: dict[str, Any], what: str, part: Part) -> None:
    with closing(tiered(config, part, small=True)) as engine:
        fault, told = recalled(engine)
    part.add(what, fault or "alike", beside=told, failed=bool(fault))


def tiered(config: dict[str, Any], part: Part, *, small: bool) -> Engine:
    """Return an engine of random weights with a host's tier."""
    nbytes = 1 << 24 if small else _COPIED
    with TemporaryDirectory() as parent:
        folder = write_config(Path(parent) / "model", config, small)
        options = replace(
            options_of(folder, part.device, _ROWS, small, memory_bytes=_MEMORY),
            prefix_caching=True,
            mamba_track_interval=_GRID if small else 256,
            host_cache_bytes=nbytes,
            host_cache_state_bytes=nbytes,
        )
        return Engine(options, _model(options, part), None)


def _model(options: EngineConfig, part: Part) -> Any:
    return ready_model(
        configured_model(options), DeviceWeights(part.device, options.dtype), options
    )


def recalled(engine: Engine) -> tuple[str, str]:
    """Return what is wrong with answers whose prompts come back from the host's memory, or nothing,
    and how near they are to the first ones. What the device had is overwritten before."""
    tier = _tier(engine)
    tier.loads.cost = _AlwaysSooner()
    tokens = random.Random(0)
    vocab = engine.plan.model_config.vocab_size
    prompts = [[tokens.randrange(3, vocab) for _ in range(length)] for length in _LENGTHS]
    first = engine.generate(prompts, _GREEDY)
    deadline = time.monotonic() + _SAVED_S
    while tier.saving:
        tier.collect()
        if time.monotonic() > deadline:
            return f"NOT SAVED in {_SAVED_S:.0f} s", ""
        time.sleep(1e-3)
    engine.prefixes.pools.cache.flush()
    for pool in (engine.states, engine.pages):
        pool.storage.random_(0, 256)
    _wait(engine)
    again = engine.generate(prompts, _GREEDY)
    fault, worst, ties = differing(again, first)
    counters = engine.counters
    hits, failed = counters.host_hit_tokens, counters.host_failures
    told = (
        f"{hits} tokens of {sum(_LENGTHS)} from the host, {counters.host_pages_saved} pages and "
        f"{counters.host_snapshots_saved} snapshots saved, log probabilities to {worst:.0e}, "
        f"{ties} ties"
    )
    if failed:
        return f"{failed} COPIES FAILED", told
    return fault or ("" if hits else "NOTHING CAME BACK"), told


def _tell_copies(part: Part) -> None:
    with closing(tiered(FEW_LAYERS[0], part, small=part.dry)) as engine:
        tier = _tier(engine)
        there = (tier.memory.states, tier.memory.pages)
        here = tuple(torch.empty_like(each, device=part.device) for each in there)
        _wait(engine)
        save = BlockCopier("save", list(map(Blocks, here, there)), part.device)
        load = BlockCopier("load", list(map(Blocks, there, here)), part.device)
        for name, copier in (("to the host", save), ("from the host", load)):
            part.row(name, partial(_tell_copy, name, copier, here, there, part))
        part.row("steps", partial(_tell_steps, engine, save, load, there, part))
        for copier in (save, load):
            copier.close()


def _tell_copy(
    name: str,
    copier: BlockCopier,
    here: tuple[torch.Tensor, ...],
    there: tuple[torch.Tensor, ...],
    part: Part,
) -> None:
    """Tell the speed of a copy of all blocks, whether it is whole, and how soon one stops."""
    for one, other in zip(here, there, strict=True):
        one.random_(0, 256)
        if name == "from the host":
            other.copy_(one)
            one.zero_()
    if part.device.type == "cuda":
        torch.cuda.synchronize()
    pairs = [[(block, block) for block in range(len(blocks))] for blocks in there]
    copy = copier.start(pairs[0], pairs[1], _nothing)
    seconds = copy.done.result(_SAVED_S)
    moved = [other.to(part.device) for other in there]
    whole = all(map(torch.equal, here, moved)) and all(bool(one.any()) for one in here)
    rate = f"{copy.nbytes / seconds / 1e9:.1f} GB/s" if seconds else "stopped"
    part.add(f"copies {name}", rate if whole else "OTHER BYTES", failed=not whole,
             beside=f"{copy.nbytes / 1e9:.2f} GB, slots of {there[0].shape[1] / 1e6:.1f} MB, pages "
             f"of {there[1].shape[1] / 1e3:.0f} kB")  # fmt: skip
    took = []
    for _ in range(5):
        copy = copier.start(pairs[0], pairs[1], _nothing)
        time.sleep(0.01)
        began = time.perf_counter()
        copy.stop()
        ended = copy.done.result(_SAVED_S)
        if ended is None:
            took.append(time.perf_counter() - began)
    late = bool(took) and max(took) > _STOP_S
    part.add(f"copies {name}, stopped", f"{1e3 * median(took):.2f} ms" if took else "ended before",
             beside=f"at most {1e3 * max(took):.2f} ms; pieces of {PIECE_BYTES >> 20} MiB"
             if took else "", failed=late)  # fmt: skip


def _tell_steps(
    engine: Engine,
    save: BlockCopier,
    load: BlockCopier,
    there: tuple[torch.Tensor, ...],
    part: Part,
) -> None:
    """Tell the time of decode steps without copies and beside them, and whether they wait."""
    words = random.Random(1)
    vocab = engine.plan.model_config.vocab_size
    steps = 10 if part.dry else _STEPS
    sampling = replace(_GREEDY, max_tokens=200 if part.dry else 4 * _STEPS, logprobs=None)
    for row in range(_ROWS):
        prompt = tuple(words.randrange(3, vocab) for _ in range(20))
        engine.submit(RequestSpec(f"tier-{row}", prompt, sampling))
    while engine.status().waiting:
        engine.step()
    _ = _seconds(engine, 10)
    alone = _seconds(engine, steps)
    pairs = [[(block, block) for block in range(len(blocks))] for blocks in there]
    copies = [copier.start(pairs[0], pairs[1], _nothing) for copier in (save, load)]
    with watched_waits(part.device) as found:
        beside = _seconds(engine, steps)
    over = [copy.done.done() for copy in copies]
    for copy in copies:
        copy.stop()
        copy.done.result(_SAVED_S)
    again = _seconds(engine, steps)
    for row in range(_ROWS):
        engine.cancel(f"tier-{row}", "measured")
    while engine.has_work:
        engine.step()
    mid = [1e3 * percentile(each, 0.5) for each in (alone, beside, again)]
    most = [1e3 * percentile(each, 0.99) for each in (alone, beside, again)]
    places = ", ".join(f"{where} ({count})" for where, count in found.places.most_common())
    waits = found.places.total()
    part.add("steps beside copies", f"{waits} WAITS" if waits else "none waits", beside=places,
             failed=bool(waits))  # fmt: skip
    part.add(
        "steps beside copies both ways",
        f"{mid[1]:.2f} ms",
        beside=f"p99 {most[1]:.2f}; before {mid[0]:.2f}, p99 {most[0]:.2f}; behind {mid[2]:.2f}, "
        f"p99 {most[2]:.2f}; copies that were over: {sum(over)}",
    )


def _seconds(engine: Engine, steps: int) -> list[float]:
    """Return the seconds of each step."""
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        engine.step()
        took.append(time.perf_counter() - began)
    return took


def _tier(engine: Engine) -> HostTier:
    assert engine.tier is not None
    return engine.tier


def _nothing() -> None:
    """Take the place of what a copy's end wakes."""


def _wait(engine: Engine) -> None:
    if engine.states.storage.device.type == "cuda":
        torch.cuda.synchronize()
