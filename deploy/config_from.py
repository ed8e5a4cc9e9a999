"""The configs that the values of the command-line options make."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from baton.api.fields.request_fields import UnknownFields
from baton.core.cache_salt import CacheScope
from baton.deploy.access_options import client_tls_from
from baton.deploy.cluster.cluster_name import new_name
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.device_choice import ONE, ChosenDevice, chosen_device
from baton.deploy.cluster.gpu_demand import GpuDemand
from baton.deploy.limit_options import limits_from
from baton.deploy.options import DTYPES, authority_from, dtype_from, folder_from, verify_from
from baton.deploy.placement_options import placement_from
from baton.deploy.record_options import dump_from, telemetry_from
from baton.deploy.router_options import lease_ms_from
from baton.deploy.template_options import template_from
from baton.engine.layout.grids import Strategy
from baton.engine.settings.choices import LoadFormat, SpeculativeAlgorithm, WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.kernel_choice import KernelChoice
from baton.router.config import RouterConfig
from baton.text.generation_config import SamplingDefaults
from baton.worker.state_options import SendSnapshots, StateReturn

_TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


def device_from(options: dict[str, Any], demand: GpuDemand = ONE) -> ChosenDevice:
    """Return the device of the workers, and why it was taken; see `chosen_device`.

    options: the options' values by parameter name. demand: what all workers ask of GPUs here.
    """
    return chosen_device(options["device"], WeightFormat(options["weight_format"]), demand)


def cluster_device_from(options: dict[str, Any]) -> ChosenDevice:
    """Return the device of a cluster's workers, and why it was taken. The workers of a joined Ray
    may run on other hosts, which need as many GPUs together.

    options: the options' values by parameter name.
    """
    each = options["gpus_per_worker"]
    if options["ray_address"] is not None:
        return device_from(options, GpuDemand(each=each))
    prefill, decode = options["prefill"], options["decode"] * options["decode_dp"]
    tp = options["tp"]
    ranks = (options["prefill_tp"] or tp,) * prefill + (options["decode_tp"] or tp,) * decode
    return device_from(options, GpuDemand(ranks, each))


def engine_from(options: dict[str, Any]) -> EngineConfig:
    """Build the engine's config; downloads a model of the hub that is not here yet.

    options: the options' values by parameter name. Raises StartError.
    """
    memory = options["memory_gb"]
    device = device_from(options).name
    folder = folder_from(options)
    return EngineConfig(
        model=folder,
        dtype=_TORCH_DTYPES[dtype_from(options, folder)],
        ssm_dtype=_TORCH_DTYPES[options["mamba_ssm_dtype"]],
        load_format=LoadFormat(options["load_format"]),
        weight_format=WeightFormat(options["weight_format"]),
        kernels=KernelChoice(options["kernels"]),
        device=device,
        page_size=options["page_size"],
        max_running=options["max_running"],
        chunked_prefill_size=options["chunked_prefill_size"],
        prefill_beside_decode=options["prefill_beside_decode"],
        itl_target_s=None if options["itl_target_ms"] is None else options["itl_target_ms"] / 1000,
        max_model_len=options["max_model_len"],
        memory_bytes=None if memory is None else int(memory * 2**30),
        memory_fraction=options["memory_fraction"],
        held_fraction=options["held_fraction"],
        layer_group_bytes=options["layer_group_bytes"],
        graphs=not options["no_graphs"],
        prefix_caching=not options["no_prefix_caching"],
        mamba_scheduler_strategy=Strategy(options["mamba_scheduler_strategy"]),
        mamba_track_interval=options["mamba_track_interval"],
        snapshots_per_prefill=options["snapshots_per_prefill"],
        cached_snapshots=options["cached_snapshots"],
        mamba_full_memory_ratio=options["mamba_full_memory_ratio"],
        speculative_algorithm=SpeculativeAlgorithm(options["speculative_algorithm"]),
        speculative_num_draft_tokens=int(options["speculative_num_draft_tokens"]),
        speculative_ngram_capacity=options["speculative_ngram_capacity"],
        overlap=not options["no_overlap"],
        canary=options["canary"],
    )


def router_from(model: Path, options: dict[str, Any]) -> RouterConfig:
    """Build the router's config, with any free ports on loopback for clients.

    options: the options' values by parameter name. Raises StartError.
    """
    return RouterConfig(
        model,
        routers=options["routers"],
        served_model_name=options["served_model_name"],
        internal_host=options["internal_host"],
        internal_port=options["internal_port"],
        policy=options["policy"],
        prefill_here=options["prefill_here"],
        itl_target_ms=options["itl_target_ms"],
        lease_ms=lease_ms_from(options["lease"]),
        max_queued=options["max_queued_requests"],
        max_queued_tokens=options["max_queued_tokens"],
        key_slowdown=options["key_slowdown"],
        max_body_bytes=options["max_body_mb"] << 20,
        unknown_fields=UnknownFields(options["unknown_fields"]),
        closed_objects=options["closed_objects"],
        sampling_defaults=SamplingDefaults(options["sampling_defaults"]),
        template=template_from(options),
        worker_wait_s=options["worker_wait"],
        request_timeout_s=options["request_timeout"],
        incremental_streaming_output=options["incremental_streaming_output"],
        ping_s=options["sse_ping_interval"],
        allowed_hosts=options["allowed_hosts"],
        api_keys=options["api_keys"],
        cors_origins=options["cors_origins"],
        client_tls=client_tls_from(options),
        limits=limits_from(options),
        cache_scope=CacheScope(options["cache_scope"]),
        dump=dump_from(options),
        telemetry=telemetry_from(options),
    )


def config_from(options: dict[str, Any]) -> ClusterConfig:
    """Build the cluster's config.

    options: the options' values by parameter name. Raises StartError.
    """
    device = cluster_device_from(options)
    options = options | {"device": device.name, "gpus_per_worker": device.gpus_per_worker}
    engine = replace(engine_from(options), rank_timeout_s=options["rank_timeout"])
    return ClusterConfig(
        engine,
        router_from(engine.model, options),
        routers=options["routers"],
        name=options.get("cluster") or new_name(),
        prefill=options["prefill"],
        decode=options["decode"],
        decode_dp=options["decode_dp"],
        prefill_tp=options["prefill_tp"] or options["tp"],
        decode_tp=options["decode_tp"] or options["tp"],
        threads=options["threads"],
        channel=options["channel"],
        nixl_interfaces=options["nixl_interfaces"],
        verify=verify_from(options["verify"]),
        authority=authority_from(options),
        state_return=StateReturn(options["state_return"]),
        send_snapshots=SendSnapshots(options["send_snapshots"]),
        ray_address=options["ray_address"],
        placement=placement_from(options),
        worker_interface=options["worker_interface"],
        start_deadline_s=options["start_timeout"],
        profile_folder=options["profile_folder"].absolute(),
    )
