"""The devices of a replica's ranks."""

import torch

from baton.core.errors import ConfigError
from baton.engine.config import EngineConfig


def rank_device(config: EngineConfig, rank: int) -> torch.device:
    """Return a rank's device: on GPUs, the rank's number counts those that the process sees."""
    if config.tp == 1 or config.device == "cpu":
        return torch.device(config.device)
    return torch.device("cuda", rank)


def check_gpus(config: EngineConfig) -> None:
    """Raise ConfigError where this process sees fewer GPUs than the replica has ranks."""
    if config.device == "cpu":
        return
    seen = torch.cuda.device_count()
    if seen < config.tp:
        raise ConfigError(
            f"tp {config.tp} needs as many GPUs on one host, and {seen} are visible here: see "
            "CUDA_VISIBLE_DEVICES, or use a smaller tp"
        )
