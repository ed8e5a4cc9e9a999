"""Pages of KV, page-major."""

import torch
from torch import Tensor

from baton.engine.layout.layout import PageLayout
from baton.engine.memory.id_pool import IdPool
from baton.engine.memory.state_pool import component_view
from baton.kernels import huge_pages


class PagePool:
    """`pages` pages of `layout`, in one allocation; page 0 is the padding page.

    storage: [pages, page_bytes] uint8, the one region that a channel registers.
    k[i], v[i]: [pages, page_size, kv_heads, head_dim], strided views of the i-th layer that has
                keys and values.
    latents[i]: [pages, page_size, width], of the i-th layer that has latents.
    """

    def __init__(
        self,
        layout: PageLayout,
        pages: int,
        device: torch.device,
        storage: Tensor | None = None,
    ) -> None:
        """storage: zeros to lie in; None: allocates them."""
        self.layout = layout
        self.ids = IdPool(pages, "page")
        if storage is None:
            storage = huge_pages.zeros((pages, layout.page_bytes), torch.uint8, device)
        self.storage = storage
        self.k = self._views("k")
        self.v = self._views("v")
        self.latents = self._views("latent")

    def _views(self, name: str) -> tuple[Tensor, ...]:
        """Return every layer's tensor called `name`, where it has one, in order."""
        return tuple(
            component_view(self.storage, component)
            for component in self.layout.components
            if component.name == name
        )
