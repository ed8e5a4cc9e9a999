"""Where each layer's state lies inside a slot and inside a page. Pure geometry, no tensors.

A slot is one contiguous block with every recurrent layer's conv and SSM state; a page is one
contiguous block with every attention layer's keys and values, or latents. Clearing, copying and
sending either is then one row operation, and a pool is one registered memory region.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

ALIGNMENT = 256


def align(nbytes: int, to: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to


@dataclass(frozen=True)
class RecurrentShape:
    """One recurrent layer's state for one sequence.

    conv: [channels, width - 1], the last inputs of the convolution.
    ssm:  [heads, head_dim, d_state] for Mamba-2; None for conv-only layers.
    """

    conv: tuple[int, int]
    ssm: tuple[int, ...] | None


@dataclass(frozen=True)
class AttentionShape:
    """One attention layer's cache for one token: `kv_heads` x `head_dim`, keys and values."""

    kv_heads: int
    head_dim: int

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """What a page holds of the layer, by name: the shape that one token takes."""
        shape = (self.kv_heads, self.head_dim)
        return {"k": shape, "v": shape}


@dataclass(frozen=True)
class LatentShape:
    """One latent attention layer's cache for one token: the latent and the rotated channels.

    There is one for all heads, keys and values in one, so every tensor-parallel rank holds the
    whole of it.
    """

    width: int

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """What a page holds of the layer, by name: the shape that one token takes."""
        return {"latent": (self.width,)}


CacheShape = AttentionShape | LatentShape


@dataclass(frozen=True)
class Component:
    """One tensor inside a slot or page. `offset` in bytes from the block's start."""

    name: str
    layer: int
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def _place(
    parts: list[tuple[str, int, tuple[int, ...], torch.dtype]],
) -> tuple[tuple[Component, ...], int]:
    """Lay `parts` end to end, each 16-byte aligned; the block's size is 256-byte aligned."""
    components: list[Component] = []
    offset = 0
    for name, layer, shape, dtype in parts:
        component = Component(name, layer, offset, shape, dtype)
        components.append(component)
        offset = align(offset + component.nbytes, 16)
    return tuple(components), align(offset)


@dataclass(frozen=True)
class SlotLayout:
    """The layout of one state slot: layer after layer, conv then SSM.

    A layer's components are contiguous, so a range of layers is one run of bytes and can be sent
    while later layers still compute.
    """

    layers: tuple[RecurrentShape, ...]
    conv_dtype: torch.dtype
    ssm_dtype: torch.dtype

    @cached_property
    def _placed(self) -> tuple[tuple[Component, ...], int]:
        parts: list[tuple[str, int, tuple[int, ...], torch.dtype]] = []
        for index, layer in enumerate(self.layers):
            parts.append(("conv", index, layer.conv, self.conv_dtype))
            if layer.ssm is not None:
                parts.append(("ssm", index, layer.ssm, self.ssm_dtype))
        return _place(parts)

    @property
    def components(self) -> tuple[Component, ...]:
        return self._placed[0]

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next, a multiple of 256; 0 without recurrent layers."""
        return self._placed[1]

    @property
    def state_bytes(self) -> int:
        """Bytes of one request's state, without alignment."""
        return sum(c.nbytes for c in self.components)


@dataclass(frozen=True)
class PageLayout:
    """The layout of one page: per attention layer [page_size, kv_heads, head_dim] of K, then V, or
    [page_size, width] of latents.

    The first t tokens of a layer's K (or V) are one contiguous run, so a page's tail can be sent
    to the token.
    """

    layers: tuple[CacheShape, ...]
    page_size: int
    dtype: torch.dtype

    @cached_property
    def _placed(self) -> tuple[tuple[Component, ...], int]:
        parts: list[tuple[str, int, tuple[int, ...], torch.dtype]] = []
        for index, layer in enumerate(self.layers):
            for name, shape in layer.tensors.items():
                parts.append((name, index, (self.page_size, *shape), self.dtype))
        return _place(parts)

    @property
    def components(self) -> tuple[Component, ...]:
        return self._placed[0]

    @property
    def page_bytes(self) -> int:
        """Bytes from one page to the next, a multiple of 256; 0 without attention layers."""
        return self._placed[1]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV over all layers, without alignment."""
        shapes = [shape for layer in self.layers for shape in layer.tensors.values()]
        return sum(prod(shape) * self.dtype.itemsize for shape in shapes)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)
