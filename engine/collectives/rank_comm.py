"""The choice of a rank's collectives."""

from pathlib import Path

from baton.engine.collectives.comm import Shard
from baton.engine.collectives.gloo_comm import GlooComm
from baton.engine.collectives.nccl_comm import NcclComm
from baton.engine.collectives.rank_device import rank_device
from baton.engine.collectives.shared_memory import SharedMemory
from baton.engine.layout.device import use_device
from baton.engine.settings.config import EngineConfig


def rank_comm(
    config: EngineConfig, folder: Path, shard: Shard, memory: SharedMemory
) -> GlooComm | NcclComm:
    """Meet the other ranks, and return this one's collectives. Raises RuntimeError where they do
    not come, and ConfigError where torch has no NCCL.

    folder: where they meet. memory: what ranks on CPUs share.
    """
    device = rank_device(config, shard.rank)
    if device.type == "cpu":
        return GlooComm(folder, shard, config.rank_timeout_s, memory)
    use_device(device)
    return NcclComm(folder, shard, config.rank_timeout_s, device)
