"""Slots of recurrent state, slot-major."""

import torch
from torch import Tensor

from baton.engine.layout.layout import Component, SlotLayout
from baton.engine.memory.id_pool import IdPool
from baton.kernels import huge_pages


class StatePool:
    """`slots` slots of `layout`, in one allocation; slot 0 is the padding slot.

    storage: [slots, slot_bytes] uint8, the one region that a channel registers.
    conv[i]: [slots, channels, width - 1], ssm[i]: [slots, *ssm shape] (None for conv-only layers),
    strided views of recurrent layer i. Offsets inside them are 64-bit: slot x slot bytes passes
    2**31 at the 15th slot of a 9B model.
    """

    def __init__(
        self,
        layout: SlotLayout,
        slots: int,
        device: torch.device,
        storage: Tensor | None = None,
    ) -> None:
        """storage: zeros to lie in; None: allocates them."""
        self.layout = layout
        self.ids = IdPool(slots, "slot")
        if storage is None:
            storage = huge_pages.zeros((slots, layout.slot_bytes), torch.uint8, device)
        self.storage = storage
        by_key = {(c.name, c.layer): component_view(self.storage, c) for c in layout.components}
        self.conv: tuple[Tensor, ...] = tuple(
            by_key["conv", index] for index in range(len(layout.layers))
        )
        self.ssm: tuple[Tensor | None, ...] = tuple(
            by_key.get(("ssm", index)) for index in range(len(layout.layers))
        )


def component_view(storage: Tensor, component: Component) -> Tensor:
    """Return `component` of every block of `storage` ([blocks, block_bytes] uint8), as [blocks,
    *shape].

    Strides are in elements of the component's dtype; no copy.
    """
    end = component.offset + component.nbytes
    typed = storage[:, component.offset : end].view(component.dtype)
    return typed.view(storage.shape[0], *component.shape)
