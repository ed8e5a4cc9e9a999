"""The configs that the options of a command make."""

from dataclasses import replace
from pathlib import Path

import torch

from baton.deploy.cluster.cluster_name import new_name
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.device_choice import ONE, ChosenDevice, chosen_device
from baton.deploy.cluster.gpu_demand import GpuDemand
from baton.deploy.options.access import ClientTlsOptions, client_tls_of
from baton.deploy.options.cluster import authority_of
from baton.deploy.options.drafts import speculation_of
from baton.deploy.options.host_cache import check_host_cache
from baton.deploy.options.model import DTYPES, EngineArguments, dtype_of, folder_of
from baton.deploy.options.placement import placement_of
from baton.deploy.options.serve import ClusterArguments, ServeArguments
from baton.deploy.options.setting import Setting
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from baton.router.options import RouterOptions

_TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


def device_from(arguments: EngineArguments, demand: GpuDemand = ONE) -> ChosenDevice:
    """Return the device of the workers, and why it was taken; see `chosen_device`.

    demand: what all workers ask of GPUs here.
    """
    return chosen_device(arguments.compute.device, arguments.engine.weight_format, demand)


def cluster_device_from(arguments: ClusterArguments) -> ChosenDevice:
    """Return the device of a cluster's workers, and why it was taken. The workers of a joined Ray
    may run on other hosts, which need as many GPUs together.
    """
    each, cluster, ranks = arguments.placement.gpus_per_worker, arguments.cluster, arguments.ranks
    if cluster.ray_address is not None:
        return device_from(arguments.engine, GpuDemand(each=each))
    decode = cluster.decode * cluster.decode_dp
    numbers = (ranks.of_prefill,) * cluster.prefill + (ranks.of_decode,) * decode
    return device_from(arguments.engine, GpuDemand(numbers, each))


def engine_from(arguments: EngineArguments, device: str | None = None) -> EngineConfig:
    """Build the engine's config; downloads a model of the hub that is not here yet.

    device: what `auto` stands for; chosen here when left out. Raises StartError.
    """
    folder, compute = folder_of(arguments.model), arguments.compute
    drafts = speculation_of(arguments.drafts)
    check_host_cache(arguments.host_cache, arguments.engine)
    return EngineConfig(
        folder,
        dtype=_TORCH_DTYPES[dtype_of(compute.dtype, folder)],
        ssm_dtype=_TORCH_DTYPES[compute.mamba_ssm_dtype],
        device=device_from(arguments).name if device is None else device,
        mtp=runs_mtp(drafts.algorithm),
        speculative_algorithm=drafts.algorithm,
        speculative_num_draft_tokens=drafts.draft_tokens,
        speculative_eagle_topk=drafts.topk,
        speculative_num_steps=drafts.steps,
        **vars(arguments.engine),
    )


def runs_mtp(algorithm: SpeculativeAlgorithm) -> bool | None:
    """Return whether steps run the layer of multi-token prediction; None: where there is one."""
    return None if algorithm is SpeculativeAlgorithm.AUTO else algorithm is SpeculativeAlgorithm.MTP


def router_from(model: Path, options: RouterOptions, client_tls: ClientTlsOptions) -> RouterConfig:
    """Build the router's config, with any free ports on loopback for clients. Raises StartError."""
    return RouterConfig(model, client_tls=client_tls_of(client_tls), **vars(options))


def config_from(arguments: ClusterArguments, device: ChosenDevice | None = None) -> ClusterConfig:
    """Build the cluster's config.

    device: of all workers; chosen here when left out. Raises StartError.
    """
    device = device or cluster_device_from(arguments)
    engine = engine_from(arguments.engine, device.name)
    return ClusterConfig(
        engine,
        router_from(engine.model, arguments.router, arguments.client_tls),
        name=new_name(),
        prefill_tp=arguments.ranks.of_prefill,
        decode_tp=arguments.ranks.of_decode,
        authority=authority_of(arguments.authority),
        placement=replace(placement_of(arguments.placement), gpus=device.gpus_per_worker),
        profile_folder=arguments.profiles.profile_folder,
        **vars(arguments.cluster),
    )


def serve_config_from(
    arguments: ServeArguments, device: ChosenDevice, settings: tuple[Setting, ...]
) -> ClusterConfig:
    """Build the config of the cluster that `baton serve` runs.

    settings: those that have made the arguments. Raises StartError.
    """
    config = config_from(arguments, device)
    return replace(
        config,
        router=replace(config.router, **vars(arguments.listen)),
        name=arguments.name or config.name,
        drain_s=arguments.stop.drain_s,
        settings=settings,
    )
