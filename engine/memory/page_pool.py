"""Pages of KV, page-major."""

import torch
from torch import Tensor

from baton.engine.memory.id_pool import IdPool
from baton.engine.memory.layout import PageLayout
from baton.engine.memory.state_pool import component_view


class PagePool:
    """`pages` pages of `layout`, in one allocation; page 0 is the padding page.

    storage: [pages, page_bytes] uint8, the one region that a channel registers.
    k[i], v[i]: [pages, page_size, kv_heads, head_dim], strided views of attention layer i.
    """

    def __init__(self, layout: PageLayout, pages: int, device: torch.device) -> None:
        self.layout = layout
        self.ids = IdPool(pages, "page")
        self.storage = torch.zeros(pages, layout.page_bytes, dtype=torch.uint8, device=device)
        by_key = {(c.name, c.layer): component_view(self.storage, c) for c in layout.components}
        layers = range(len(layout.layers))
        self.k: tuple[Tensor, ...] = tuple(by_key["k", index] for index in layers)
        self.v: tuple[Tensor, ...] = tuple(by_key["v", index] for index in layers)

    def check(self) -> None:
        self.ids.check()
