"""An engine's options as `/server_info` shows them, by SGLang's names."""

from baton.engine.layout.grids import resolve
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.plan import MemoryPlan


def engine_settings(config: EngineConfig, plan: MemoryPlan) -> dict[str, object]:
    """Return the options as JSON values, with what `auto` resolved to."""
    model, grids = plan.model_config, plan.grids
    strategy = resolve(config.mamba_scheduler_strategy, len(model.recurrent), config.page_size)
    return {
        "model_type": model.family,
        "device": config.device,
        "tp_size": config.tp,
        "dtype": _name(config.dtype),
        "mamba_ssm_dtype": _name(config.ssm_dtype),
        "page_size": config.page_size,
        "max_running_requests": plan.max_running,
        "max_total_num_tokens": (plan.pages - 1) * config.page_size,
        "chunked_prefill_size": plan.chunked_prefill_size,
        "prefill_beside_decode": config.prefill_beside_decode,
        "itl_target_s": config.itl_target_s,
        "disable_cuda_graph": not config.graphs,
        "disable_radix_cache": not config.prefix_caching,
        "disable_overlap_schedule": not config.overlap or plan.donates_live,
        "speculative_algorithm": config.speculative_algorithm.value,
        "speculative_num_draft_tokens": config.draft_tokens,
        "speculative_eagle_topk": config.speculative_eagle_topk,
        "speculative_ngram_capacity": config.speculative_ngram_capacity,
        "speculative_synthetic_acceptance": config.speculative_synthetic_acceptance,
        "mamba_scheduler_strategy": strategy.value,
        "mamba_track_interval": config.mamba_track_interval,
        "mamba_checkpoint_grid": grids.checkpoint,
        "mamba_track_grid": grids.decode,
        "snapshots_per_prefill": plan.snapshots_per_prefill,
        "max_mamba_cache_size": plan.slots - 1,
        "mamba_full_memory_ratio": plan.mamba_full_memory_ratio,
    }


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
