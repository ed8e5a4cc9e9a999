"""The memory of a rank's own device."""

import torch

from baton.core.errors import ConfigError
from baton.engine.collectives.rank_device import device_name
from baton.engine.collectives.rank_messages import RankPools
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.settings.config import ModelConfig
from baton.engine.sizing.available import available_memory
from baton.engine.sizing.readable import readable

_TABLE_ITEM = 4  # bytes of a block table's entry


def check_capacity(part: ModelConfig, pools: RankPools, device: torch.device) -> None:
    """Raise ConfigError where a rank's GPU has less memory free than its pools and its steps take.

    The leader has planned them for the GPU with least memory free, possibly a while ago, or for
    as many bytes as its operator has asked for. Ranks on CPUs take from the memory of one host,
    which the plan has divided. part: of the model, whose weights are loaded.
    """
    if device.type == "cpu":
        return
    slots = SlotLayout(part.recurrent, part.conv_dtype, part.ssm_dtype)
    pages = PageLayout(part.attention, pools.page_size, part.dtype)
    needed = pools.slots * slots.slot_bytes + pools.pages * pages.page_bytes + pools.step_bytes
    needed += _TABLE_ITEM * pools.table_rows * pools.table_width
    free = available_memory(device)
    if free < needed:
        raise ConfigError(
            f"{device_name(device)} has {readable(free)} free, and the rank's slots, pages and "
            f"steps need {readable(needed)}: end what else uses this GPU, or lower memory_bytes "
            "(--memory-gb) or memory_fraction"
        )
