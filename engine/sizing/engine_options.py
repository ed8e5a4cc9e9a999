"""Checks of the engine's options, before anything is made by them."""

import math

from baton.core.errors import ConfigError
from baton.engine.settings.choices import (
    LEAST_CAPACITY,
    MOST_CAPACITY,
    MOST_CHAIN,
    MOST_NODES,
    MixedBudget,
    SpeculativeAlgorithm,
)
from baton.engine.settings.config import EngineConfig, ModelConfig


def check_options(
    config: EngineConfig, model: ModelConfig, chunked_prefill_size: int, donates_live: bool
) -> None:
    """Raise ConfigError for values that are out of range, or that do not go together.

    donates_live: see `MemoryPlan`
    """
    beside = config.prefill_beside_decode
    least = {
        "page_size": config.page_size,
        "max_running": config.most_running,
        "chunked_prefill_size": chunked_prefill_size,
        "prefill_beside_decode": 1 if beside is None or isinstance(beside, MixedBudget) else beside,
        "workers_on_host": config.workers_on_host,
        "tp": config.tp,
        "snapshots_per_prefill": config.snapshots_per_prefill or 1,
    }
    for name, value in least.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1; got {value}")
    target_s = config.itl_target_s
    if target_s is not None and not 0 < target_s < math.inf:
        raise ConfigError(f"itl_target_s must be positive and finite; got {target_s}")
    ratio = config.mamba_full_memory_ratio
    if ratio is not None and not 0 < ratio < math.inf:
        raise ConfigError(f"mamba_full_memory_ratio must be positive and finite; got {ratio}")
    if ratio is not None and config.cached_snapshots is not None:
        raise ConfigError(
            "cached_snapshots and mamba_full_memory_ratio both size the slots for snapshots: "
            f"give one of them; got {config.cached_snapshots} and {ratio}"
        )
    if config.window > 1 and donates_live:
        raise ConfigError(
            "speculative_algorithm needs snapshots in slots of their own, because no_buffer "
            "caches a live state whose draft tokens may be wrong: use "
            "mamba_scheduler_strategy extra_buffer or auto, or speculative_algorithm off"
        )
    most = MOST_NODES if config.speculative_eagle_topk > 1 else MOST_CHAIN
    if not 2 <= config.speculative_num_draft_tokens <= most:
        raise ConfigError(
            f"speculative_num_draft_tokens must be 2 to {most}; "
            f"got {config.speculative_num_draft_tokens}"
        )
    if config.trees:
        _check_trees(config)
    if config.speculative_algorithm is SpeculativeAlgorithm.MTP and not config.mtp:
        raise ConfigError(
            "speculative_algorithm mtp guesses by a layer that steps are to run: set mtp too"
        )
    if config.mtp is False and config.mtp_recycle is not None:
        raise ConfigError(
            "mtp_recycle is for drafts of the model's own layer: use speculative_algorithm mtp or "
            "auto, or leave it out"
        )
    _check_texts(config)
    _check_synthetic(config)
    check_ranks(config)
    _check_host_cache(config, model)
    _check_files(config)
    if config.tickets < 0:
        raise ConfigError(f"tickets must be at least 0; got {config.tickets}")
    for name, fraction in (
        ("memory_fraction", config.fraction),
        ("held_fraction", config.held_fraction),
    ):
        if not 0.0 <= fraction <= 1.0:
            raise ConfigError(f"{name} must be 0 to 1; got {fraction}")
    wanted = config.max_model_len
    if wanted is not None and not 1 < wanted <= model.max_model_len:
        raise ConfigError(
            f"max_model_len must be 2 to {model.max_model_len}, which is what the model was "
            f"made for; got {wanted}"
        )


def _check_trees(config: EngineConfig) -> None:
    """Raise ConfigError for options that trees of drafts do not have."""
    topk, chain = config.speculative_eagle_topk, "or speculative_eagle_topk 1"
    if config.speculative_algorithm is SpeculativeAlgorithm.AUTO:
        raise ConfigError(
            f"speculative_eagle_topk is {topk}, and auto chooses the length of chains by what "
            f"steps cost: use ngram or mtp, {chain}"
        )
    if config.speculative_synthetic_acceptance is not None:
        raise ConfigError(
            f"speculative_eagle_topk is {topk}, and speculative_synthetic_acceptance draws how "
            f"much of a chain is kept: leave it out, {chain}"
        )
    if config.on_gpu:
        raise ConfigError(
            f"speculative_eagle_topk is {topk}, and device is {config.device}: trees are verified "
            f"on CPUs alone. Use device cpu, {chain}"
        )


def _check_texts(config: EngineConfig) -> None:
    capacity, low, high = config.speculative_ngram_capacity, LEAST_CAPACITY, MOST_CAPACITY
    if capacity and config.window == 1:
        raise ConfigError(
            "speculative_ngram_capacity keeps texts to guess draft tokens from, and there are none "
            "with speculative_algorithm off: use ngram or auto, or speculative_ngram_capacity 0"
        )
    if capacity and not low <= capacity <= high:
        raise ConfigError(
            f"speculative_ngram_capacity must be 0 or {low} to {high} tokens; got {capacity}"
        )


def _check_synthetic(config: EngineConfig) -> None:
    length, most = config.speculative_synthetic_acceptance, config.speculative_num_draft_tokens
    if length is None:
        return
    if not config.mtp:
        raise ConfigError(
            "speculative_synthetic_acceptance draws which drafts of the model's own layer are "
            "kept: use speculative_algorithm mtp"
        )
    if not 1.0 <= length <= most:
        raise ConfigError(
            f"speculative_synthetic_acceptance must be 1 to {most}, the tokens that a step "
            f"verifies of a request; got {length:g}"
        )
    if config.canary or config.speculative_ngram_capacity:
        which = "canary" if config.canary else "speculative_ngram_capacity"
        raise ConfigError(
            f"speculative_synthetic_acceptance makes answers that are not the model's, and {which} "
            "is for those that are: leave one of them out"
        )


def _check_host_cache(config: EngineConfig, model: ModelConfig) -> None:
    pages, states = config.host_cache_bytes, config.host_cache_state_bytes
    if not config.host_tier_bytes:
        return
    if not config.prefix_caching:
        raise ConfigError(
            "host_cache_gb and host_cache_state_gb keep what the prefix cache has, and "
            "prefix_caching is off: leave them out, or use the prefix cache"
        )
    for name, given, layers, what in (
        ("host_cache_gb", pages, model.attention, "KV pages"),
        ("host_cache_state_gb", states, model.recurrent, "recurrent states"),
    ):
        if bool(given) != bool(layers):
            raise ConfigError(
                f"the model {'has' if layers else 'has no'} {what}, and {name} is "
                f"{given / (1 << 30):g}: {'give it memory too' if layers else 'leave it out'}"
            )


def _check_files(config: EngineConfig) -> None:
    if config.file_cache is None:
        return
    for name, given, why in (
        ("host_cache_gb", config.host_tier_bytes, "files are read into the host's tier"),
        ("file_cache_gb", config.file_cache_bytes, "files need a limit"),
        ("state_key_file", config.state_key_file, "files are named and signed by a key"),
    ):
        if not given:
            raise ConfigError(f"file_cache is given, and {name} is not: {why}. Give both")


def check_ranks(config: EngineConfig) -> None:
    """Raise ConfigError for options that a replica of several ranks does not have."""
    if config.tp > 1 and config.device not in ("cpu", "cuda"):
        raise ConfigError(
            f"device is {config.device}, one device, and the replica has {config.tp} ranks: use "
            "cuda, of which ranks take the first that CUDA_VISIBLE_DEVICES names, or tp 1"
        )
