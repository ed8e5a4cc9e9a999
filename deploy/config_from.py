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
from baton.deploy.cluster.device_choice import chosen_device
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


def device_from(given: dict[str, Any], gpus: float = 1.0) -> tuple[str, str]:
    """Return the device of the workers, and why it was taken; see `chosen_device`.

    given: the options' values by parameter name. gpus: those that all workers here need.
    """
    return chosen_device(given["device"], WeightFormat(given["weight_format"]), gpus)


def cluster_device_from(given: dict[str, Any]) -> tuple[str, str]:
    """Return the device of a cluster's workers, and why it was taken. The workers of a joined Ray
    may run on other hosts, which need as many GPUs together.

    given: the options' values by parameter name.
    """
    prefill, decode = given["prefill"], given["decode"] * given["decode_dp"]
    each = given["gpus_per_worker"]
    if given["ray_address"] is not None:
        gpus = 1.0
    elif each is not None:
        gpus = each * (prefill + decode)
    else:
        tp = given["tp"]
        gpus = prefill * (given["prefill_tp"] or tp) + decode * (given["decode_tp"] or tp)
    return device_from(given, gpus)


def engine_from(given: dict[str, Any]) -> EngineConfig:
    """Build the engine's config; downloads a model of the hub that is not here yet.

    given: the options' values by parameter name. Raises StartError.
    """
    memory = given["memory_gb"]
    device, _ = device_from(given)
    folder = folder_from(given)
    return EngineConfig(
        model=folder,
        dtype=_TORCH_DTYPES[dtype_from(given, folder)],
        ssm_dtype=_TORCH_DTYPES[given["mamba_ssm_dtype"]],
        load_format=LoadFormat(given["load_format"]),
        weight_format=WeightFormat(given["weight_format"]),
        kernels=KernelChoice(given["kernels"]),
        device=device,
        page_size=given["page_size"],
        max_running=given["max_running"],
        chunked_prefill_size=given["chunked_prefill_size"],
        prefill_beside_decode=given["prefill_beside_decode"],
        max_model_len=given["max_model_len"],
        memory_bytes=None if memory is None else int(memory * 2**30),
        memory_fraction=given["memory_fraction"],
        held_fraction=given["held_fraction"],
        layer_group_bytes=given["layer_group_bytes"],
        graphs=not given["no_graphs"],
        prefix_caching=not given["no_prefix_caching"],
        mamba_scheduler_strategy=Strategy(given["mamba_scheduler_strategy"]),
        mamba_track_interval=given["mamba_track_interval"],
        snapshots_per_prefill=given["snapshots_per_prefill"],
        cached_snapshots=given["cached_snapshots"],
        mamba_full_memory_ratio=given["mamba_full_memory_ratio"],
        speculative_algorithm=SpeculativeAlgorithm(given["speculative_algorithm"]),
        speculative_num_draft_tokens=int(given["speculative_num_draft_tokens"]),
        speculative_ngram_capacity=given["speculative_ngram_capacity"],
        overlap=not given["no_overlap"],
        canary=given["canary"],
    )


def router_from(model: Path, given: dict[str, Any]) -> RouterConfig:
    """Build the router's config, with any free ports on loopback for clients.

    given: the options' values by parameter name. Raises StartError.
    """
    return RouterConfig(
        model,
        routers=given["routers"],
        served_model_name=given["served_model_name"],
        internal_host=given["internal_host"],
        internal_port=given["internal_port"],
        policy=given["policy"],
        prefill_here=given["prefill_here"],
        lease_ms=lease_ms_from(given["lease"]),
        max_queued=given["max_queued_requests"],
        max_queued_tokens=given["max_queued_tokens"],
        key_slowdown=given["key_slowdown"],
        max_body_bytes=given["max_body_mb"] << 20,
        unknown_fields=UnknownFields(given["unknown_fields"]),
        sampling_defaults=SamplingDefaults(given["sampling_defaults"]),
        template=template_from(given),
        worker_wait_s=given["worker_wait"],
        request_timeout_s=given["request_timeout"],
        incremental_streaming_output=given["incremental_streaming_output"],
        allowed_hosts=given["allowed_hosts"],
        api_keys=given["api_keys"],
        cors_origins=given["cors_origins"],
        client_tls=client_tls_from(given),
        limits=limits_from(given),
        cache_scope=CacheScope(given["cache_scope"]),
        dump=dump_from(given),
        telemetry=telemetry_from(given),
    )


def config_from(given: dict[str, Any]) -> ClusterConfig:
    """Build the cluster's config.

    given: the options' values by parameter name. Raises StartError.
    """
    device, _ = cluster_device_from(given)
    engine = replace(engine_from(given | {"device": device}), rank_timeout_s=given["rank_timeout"])
    return ClusterConfig(
        engine,
        router_from(engine.model, given),
        routers=given["routers"],
        name=given.get("cluster") or new_name(),
        prefill=given["prefill"],
        decode=given["decode"],
        decode_dp=given["decode_dp"],
        prefill_tp=given["prefill_tp"] or given["tp"],
        decode_tp=given["decode_tp"] or given["tp"],
        threads=given["threads"],
        channel=given["channel"],
        nixl_interfaces=given["nixl_interfaces"],
        verify=verify_from(given["verify"]),
        authority=authority_from(given),
        state_return=StateReturn(given["state_return"]),
        send_snapshots=SendSnapshots(given["send_snapshots"]),
        ray_address=given["ray_address"],
        placement=placement_from(given),
        worker_interface=given["worker_interface"],
        start_deadline_s=given["start_timeout"],
        profile_folder=given["profile_folder"].absolute(),
    )
