"""Loading a model: its configuration, then its weights."""

import logging
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import replace

import torch

from baton.core.errors import ConfigError
from baton.engine.assembly.followers import Followers
from baton.engine.assembly.kept_form import check_device, check_rounding, kept_form, rounding_of
from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.collectives.comm import Comm, Shard, SingleComm
from baton.engine.collectives.rank_device import check_allocator, check_gpus, rank_device
from baton.engine.layout.device import device_of, use_device
from baton.engine.loading.rounding import Rounding
from baton.engine.loading.scales import EIGHT_BIT, FP8
from baton.engine.loading.weights import (
    Checkpoint,
    DeclaredWeights,
    DummyWeights,
    Progress,
    Shape,
    WeightSource,
    holds_weights,
)
from baton.engine.models.decoder import Decoder
from baton.engine.models.family_table import FAMILIES, configured_model
from baton.engine.models.layers.vocabulary import HEAD
from baton.engine.models.quantised import list_faults
from baton.engine.models.scope import Scope
from baton.engine.replay.graphed_model import CudaCapture, GraphedModel
from baton.engine.replay.replayed_model import ReplayedModel
from baton.engine.settings.choices import LoadFormat, WeightFormat
from baton.engine.settings.config import EngineConfig, ModelConfig
from baton.engine.settings.quantisation import UNQUANTISED
from baton.engine.sizing.available import available_memory, card_memory, check_budget
from baton.engine.sizing.engine_options import check_ranks
from baton.engine.sizing.host_sizes import HostSizes
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.sizing.plan_help import crowded
from baton.engine.sizing.readable import readable
from baton.engine.step.model import Model
from baton.kernels.base import Kernels
from baton.kernels.dispatch import select
from baton.kernels.torch_kernels import TORCH

log = logging.getLogger(__name__)

_UNTIED = "tie_word_embeddings of config.json does not make it the embedding's"
_CPU = torch.device("cpu")
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)  # numbers of ranks that an error may propose


def load_model(config: EngineConfig, progress: Progress | None = None) -> Model:
    """Load the model in `config.model`, on `config.device`, ready to run; on several ranks, after
    starting the processes of the others. See `load_part`; raises RankError too.
    """
    if config.tp == 1:
        if device_of(config.device).type == "cuda":
            check_allocator()
        return load_part(config, Shard(), SingleComm(), progress)
    check_ranks(config)
    check_gpus(config)
    whole = configured_model(config)
    divided_model(whole, config.tp)
    threads = max(1, torch.get_num_threads() // config.tp)
    torch.set_num_threads(threads)
    followers = Followers(config, threads)
    try:
        of_leader = replace(config, device=str(followers.device))
        part = load_part(of_leader, Shard(0, config.tp), followers.comm, progress)
        return LeadingModel(whole, part, followers.comm, followers)
    except BaseException:
        followers.close()
        raise


@contextmanager
def ending_ranks(model: Model) -> Iterator[None]:
    """End the processes of the model's other ranks after an error inside: nobody else would."""
    try:
        yield
    except BaseException:
        if isinstance(model, LeadingModel):
            model.followers.close()
        raise


def load_part(
    config: EngineConfig, shard: Shard, comm: Comm, progress: Progress | None = None
) -> Model:
    """Load what rank `shard` runs of the model in `config.model`, on `config.device`.

    progress is called with (bytes loaded, bytes in all). Raises ConfigError for a folder or a
    configuration that cannot work, WeightsError for weights that do not fit it.
    """
    model = configured_model(config)
    device = device_of(config.device)
    check_device(config.weight_format, device)
    check_rounding(config.weight_format, model.quantisation, config.round_vocabulary)
    use_device(device)
    if config.load_format is LoadFormat.DUMMY:
        return ready_model(model, DummyWeights(), config, shard, comm)
    checkpoint = open_checkpoint(model, progress, device)
    needed = check_weights(model, checkpoint)
    quantised = checkpoint.quantised & needed.keys()
    kept = any(map(checkpoint.keeps, quantised)) or model.quantisation == UNQUANTISED
    if config.weight_format is WeightFormat.FP8 and not kept:
        unread = f" that products on {device} read" if quantised else ""
        raise ConfigError(
            f"weight_format fp8 keeps the 8-bit weights of a checkpoint that states some, and "
            f"{model.folder} has none{unread}. Use weight_format auto, or int8, which rounds all "
            "weights to 8 bits"
        )
    if shard.rank == 0:
        _log_quantised(model, quantised, needed)
    return ready_model(model, checkpoint, config, shard, comm)


def planned_memory(config: EngineConfig) -> MemoryPlan:
    """Plan the memory of the model in `config.model` by the sizes of its tensors, without loading
    any. Raises ConfigError where what the device has free does not suffice.
    """
    device = device_of(config.device)
    model = configured_model(config)
    read = config.load_format is not LoadFormat.DUMMY and holds_weights(model.folder)
    checkpoint = open_checkpoint(model, device=device) if read else None
    free = available_to_ranks(config)
    form = config.weight_format
    if form is WeightFormat.FP8 or (checkpoint is not None and checkpoint.quantised):
        form = kept_form(form, device, model.dtype, config.kernels)
    part = divided_model(
        model,
        config.tp,
        weight_format=form,
        checkpoint=checkpoint,
        rounding=_rounding(config, model),
    )
    plan = MemoryPlan(config, part.config, part.weight_bytes, free, total_of_ranks(config))
    if device.type != "cpu" and plan.budget_bytes > free:
        by_others = crowded(config, plan.total_bytes or free, (plan.total_bytes or free) - free)
        raise ConfigError(
            f"memory_bytes is {readable(plan.budget_bytes)}, but {config.device} has "
            f"{readable(free)} free: lower it (--memory-gb), or leave it out to take "
            f"{config.fraction:.0%} of the card, as far as it is free"
            f"{f'; {by_others}' if by_others else ''}"
        )
    return plan


def plan_of(config: EngineConfig, model: Model) -> MemoryPlan:
    """Plan the memory beside a loaded model. Raises ConfigError."""
    free = available_to_ranks(config) if config.memory_bytes is None else 0
    weights = model.weight_bytes
    plan = MemoryPlan(config, model.config, weights, free + weights, total_of_ranks(config))
    HostSizes(plan).check(loaded=weights)
    return plan


def available_to_ranks(config: EngineConfig) -> int:
    """Return the bytes that could be taken now on the device of the rank that has least."""
    ranks = range(1 if config.device == "cpu" else config.tp)
    return min(available_memory(rank_device(config, rank)) for rank in ranks)


def total_of_ranks(config: EngineConfig) -> int | None:
    """Return all memory of the rank whose GPU has least; None on a CPU."""
    totals = [card_memory(rank_device(config, rank)) for rank in range(config.tp)]
    return min((total for total in totals if total is not None), default=None)


def with_memory(config: EngineConfig) -> EngineConfig:
    """Return the options with what the memory decides on a GPU: the budget, and how many requests
    run at once. Both are decided once, before weights are loaded and steps are captured.

    Raises ConfigError, before any weight is loaded, where memory can be seen not to suffice.
    """
    if device_of(config.device).type != "cpu":
        plan = planned_memory(config)
        HostSizes(plan).check()
        if config.memory_bytes is None and plan.total_bytes is not None:
            by_others = crowded(config, plan.total_bytes, plan.total_bytes - plan.available_bytes)
            if by_others:
                log.warning("this engine takes what is free: %s", by_others)
        if plan.max_running < config.most_running:
            log.warning(
                "%d requests run at once, not %d: memory does not serve more. --max-running says "
                "otherwise; a larger --memory-fraction or --tp, or a smaller "
                "--chunked-prefill-size, makes room",
                plan.max_running,
                config.most_running,
            )
        counted = plan.overhead_bytes if plan.counts_overhead else 0
        budget = plan.budget_bytes - counted
        return replace(config, max_running=plan.max_running, memory_bytes=budget)
    if config.memory_bytes is not None:
        check_budget(config.tp * config.memory_bytes, "the engine")
    if config.host_tier_bytes:
        HostSizes(planned_memory(config)).check()
    return config


def ready_model(
    model: ModelConfig,
    source: WeightSource,
    config: EngineConfig,
    shard: Shard | None = None,
    comm: Comm | None = None,
) -> Model:
    """Build the model, or what rank `shard` runs of it, from the tensors of `source`, on the
    kernels that the device and the options call for, its decode steps recorded where that can be.
    """
    device = device_of(config.device)
    kernels = select(device, model.dtype, config.kernels)
    form = kept_form(config.weight_format, device, model.dtype, config.kernels)
    rounding = _rounding(config, model)
    built = build_model(model, source, device, shard, comm, kernels, form, rounding)
    if kept := built.tally.eight_bit_bytes:
        log.info("%s: %s of its weights stay in 8 bits", model.folder, readable(kept))
    if kernels.native is not None:
        return ReplayedModel(built, kernels.native)
    if device.type == "cuda" and kernels.replayable and config.graphs:
        return GraphedModel(built, config.most_running, CudaCapture())
    return built


def open_checkpoint(
    model: ModelConfig, progress: Progress | None = None, device: torch.device = _CPU
) -> Checkpoint:
    """Open the weights of a model by its conventions. Raises WeightsError.

    device: where they will be; products of GPUs read FP8, those of CPUs INT8 too
    """
    ignored = FAMILIES[model.family].ignored_by(model)
    # A tool that drops a head that is the embedding may leave its scale. `check` says whether the
    # model needs it.
    ignored += [f"{HEAD}_scale*"]
    block, kept = model.quantisation.block, EIGHT_BIT if device.type == "cpu" else (FP8,)
    return Checkpoint(model.folder, progress, model.dtype, block, ignored, kept)


def check_weights(model: ModelConfig, checkpoint: Checkpoint) -> Mapping[str, Shape]:
    """Check that the checkpoint holds what the model needs, and nothing else. Return the shapes of
    the tensors that it needs. Raises WeightsError.
    """
    needs = declared_weights(model, checkpoint)
    checkpoint.check(needs.shapes, {HEAD: _UNTIED})
    return needs.shapes


def _log_quantised(model: ModelConfig, quantised: Set[str], needed: Mapping[str, Shape]) -> None:
    """Log that there are 8-bit weights, and the modules of which config and files disagree."""
    if quantised:
        log.info(
            "%s: %d 8-bit weights (%s) are read",
            model.folder,
            len(quantised),
            model.quantisation.name,
        )
    if quantised or model.quantisation != UNQUANTISED:
        faults = list_faults(model.quantisation, quantised, needed)
        if faults is not None:
            log.warning(
                "%s: its config (%s) and its weight files disagree, and the files are followed: %s",
                model.folder,
                model.quantisation.name,
                faults,
            )


def declared_weights(config: ModelConfig, checkpoint: Checkpoint | None = None) -> DeclaredWeights:
    """Return the tensors that a model of this configuration needs, without allocating any.

    checkpoint: as of DeclaredWeights.
    """
    declared = DeclaredWeights(checkpoint)
    build_model(config, declared, torch.device("meta"))
    return declared


def build_model(
    config: ModelConfig,
    source: WeightSource,
    device: torch.device,
    shard: Shard | None = None,
    comm: Comm | None = None,
    kernels: Kernels = TORCH,
    weight_format: WeightFormat = WeightFormat.MODEL,
    rounding: Rounding | None = None,
) -> Decoder:
    """Compose the model of `config`, or the part of it that rank `shard` runs, from the tensors of
    `source`.

    weight_format: as of `kept_form`. rounding: as of `rounding_of`
    """
    shard = shard or Shard()
    scope = Scope(
        source,
        config.dtype,
        device,
        shard,
        (comm or SingleComm()).on(kernels),
        kernels,
        eight_bit=weight_format in (WeightFormat.FP8, WeightFormat.INT8),
        rounding=rounding,
    )
    built = FAMILIES[config.family].build(config, scope)
    return replace(built, config=config.part(shard.rank, shard.size))


def divided_model(
    config: ModelConfig,
    size: int,
    rank: int = 0,
    weight_format: WeightFormat = WeightFormat.MODEL,
    checkpoint: Checkpoint | None = None,
    rounding: Rounding | None = None,
) -> Decoder:
    """Compose the part of the model that rank `rank` of `size` runs, of tensors without data.

    checkpoint: as of DeclaredWeights. What it holds of other values than what config.json ties it
    to is counted.

    Raises ConfigError for a model that so many ranks cannot divide, with the numbers that can.
    """
    meta = torch.device("meta")

    def build(ranks: int) -> Decoder:
        source, shard = DeclaredWeights(checkpoint), Shard(min(rank, ranks - 1), ranks)
        return build_model(
            config, source, meta, shard, weight_format=weight_format, rounding=rounding
        )

    try:
        return build(size)
    except ConfigError as error:
        if size == 1:
            raise
        possible = [str(ranks) for ranks in _SIZES if _succeeds(build, ranks)]
        ranks = f"{' or '.join(possible)} rank{'s' if len(possible) > 1 else ''}"
        raise ConfigError(f"{error}; {config.folder.name} runs on {ranks}") from error


def _rounding(config: EngineConfig, model: ModelConfig) -> Rounding | None:
    return rounding_of(config.weight_format, model.quantisation, config.round_vocabulary)


def _succeeds(build: Callable[[int], Decoder], ranks: int) -> bool:
    try:
        build(ranks)
    except ConfigError:
        return False
    return True
