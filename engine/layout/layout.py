"""The places of each layer's state inside a slot and inside a page. Pure geometry, no tensors.

A slot is one contiguous block with every recurrent layer's conv and SSM state; a page is one
contiguous block with every attention layer's keys and values, or latents. Clearing, copying and
sending either is then one row operation, and a pool is one registered memory region.

`shard` of a layout is that of one tensor-parallel rank: what a rank keeps is laid out as a whole.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch

from baton.engine.layout.shards import SubBlock, length, parts

ALIGNMENT = 256


def align(nbytes: int, to: int = ALIGNMENT) -> int:
    """Return `nbytes` rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to


@dataclass(frozen=True)
class RecurrentShape:
    """One recurrent layer's state for one sequence.

    conv: [channels, width - 1], the last inputs of the convolution.
    ssm:  [heads, head_dim, d_state] for Mamba-2; None for conv-only layers.
    """

    conv: tuple[int, int]
    ssm: tuple[int, ...] | None
    fused: tuple[SubBlock, ...] = ()  # of the channels, as [x | B | C]; empty: one of them all
    # Values a token, beside the convolution's inputs, that the state moves on by: decays and rates.
    gates: int = 0
    replicated: bool = False  # every rank has it all: a state that is computed of whole tokens

    @property
    def kept(self) -> int:
        """Values that verifying a token keeps, for the state to be computed again."""
        return self.conv[0] + self.gates

    @property
    def conv_blocks(self) -> tuple[SubBlock, ...]:
        """The blocks by which ranks divide the channels; empty: they do not."""
        if self.replicated:
            return ()
        return self.fused or (SubBlock("convolution channels", self.conv[0]),)

    @property
    def ssm_blocks(self) -> tuple[SubBlock, ...]:
        """The blocks by which ranks divide the SSM state's first axis."""
        return (SubBlock("recurrent heads", self.ssm[0]),) if self.ssm else ()

    def shard(self, rank: int, size: int) -> "RecurrentShape":
        """Return the part that rank `rank` of `size` keeps. Raises ConfigError."""
        if self.replicated:
            return self
        conv = parts(self.conv_blocks, rank, size)
        heads = length(parts(self.ssm_blocks, rank, size))
        return RecurrentShape(
            (length(conv), self.conv[1]),
            self.ssm and (heads, *self.ssm[1:]),
            conv,
            self.gates // size,
        )


@dataclass(frozen=True)
class AttentionShape:
    """One attention layer's cache for one token: `kv_heads` x `head_dim`, keys and values."""

    kv_heads: int
    head_dim: int

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The tensors that a page holds of the layer, by name: the shape that one token takes."""
        shape = (self.kv_heads, self.head_dim)
        return {"k": shape, "v": shape}

    @property
    def blocks(self) -> tuple[SubBlock, ...]:
        """The blocks by which ranks divide keys and values."""
        return (SubBlock("KV heads", self.kv_heads, shared=True),)

    def shard(self, rank: int, size: int) -> "AttentionShape":
        """Return the part that rank `rank` of `size` keeps. Raises ConfigError."""
        return AttentionShape(length(parts(self.blocks, rank, size)), self.head_dim)


@dataclass(frozen=True)
class LatentShape:
    """One latent attention layer's cache for one token: the latent and the rotated channels, one
    for all heads, keys and values."""

    width: int

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The tensors that a page holds of the layer, by name: the shape that one token takes."""
        return {"latent": (self.width,)}

    @property
    def blocks(self) -> tuple[SubBlock, ...]:
        """Empty: ranks divide the heads, and all of them read the whole latent."""
        return ()

    def shard(self, rank: int, size: int) -> "LatentShape":
        """Return the part that rank `rank` of `size` keeps, which is all of it."""
        return self


CacheShape = AttentionShape | LatentShape


@dataclass(frozen=True)
class Component:
    """One tensor inside a slot or page. `offset` in bytes from the block's start."""

    name: str
    layer: int
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: tuple[SubBlock, ...] = ()  # how ranks divide `axis`; empty: every rank has it all
    axis: int = 0

    @cached_property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def _place(unplaced: list[Component]) -> tuple[tuple[Component, ...], int]:
    """Lay components end to end, each 16-byte aligned, and return them with the block's size, which
    is 256-byte aligned.
    """
    components: list[Component] = []
    offset = 0
    for each in unplaced:
        component = replace(each, offset=offset)
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
        found: list[Component] = []
        for index, layer in enumerate(self.layers):
            dtype = self.conv_dtype
            found.append(Component("conv", index, 0, layer.conv, dtype, layer.conv_blocks))
            if layer.ssm is not None:
                dtype = self.ssm_dtype
                found.append(Component("ssm", index, 0, layer.ssm, dtype, layer.ssm_blocks))
        return _place(found)

    def shard(self, rank: int, size: int) -> "SlotLayout":
        """Return the slot of tensor-parallel rank `rank` of `size`. Raises ConfigError."""
        return replace(self, layers=tuple(layer.shard(rank, size) for layer in self.layers))

    @property
    def components(self) -> tuple[Component, ...]:
        return self._placed[0]

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next, a multiple of 256; 0 without recurrent layers."""
        return self._placed[1]

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of one request's state, without alignment."""
        return sum(c.nbytes for c in self.components)

    def bytes_before(self, layer: int) -> int:
        """Return the bytes of the state of the recurrent layers before `layer`, without
        alignment.
        """
        return sum(c.nbytes for c in self.components if c.layer < layer)


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
        found: list[Component] = []
        for index, layer in enumerate(self.layers):
            for name, token in layer.tensors.items():
                shape, blocks = (self.page_size, *token), layer.blocks
                found.append(Component(name, index, 0, shape, self.dtype, blocks, axis=1))
        return _place(found)

    def shard(self, rank: int, size: int) -> "PageLayout":
        """Return the page of tensor-parallel rank `rank` of `size`. Raises ConfigError."""
        return replace(self, layers=tuple(layer.shard(rank, size) for layer in self.layers))

    @property
    def components(self) -> tuple[Component, ...]:
        return self._placed[0]

    @property
    def page_bytes(self) -> int:
        """Bytes from one page to the next, a multiple of 256; 0 without attention layers."""
        return self._placed[1]

    def components_of(self, layers: tuple[int, int] | None) -> tuple[Component, ...]:
        """Return the components of attention layers [first, end), or of all."""
        if layers is None:
            return self.components
        return tuple(c for c in self.components if layers[0] <= c.layer < layers[1])

    def bytes_of(self, layers: tuple[int, int] | None) -> int:
        """Return the bytes of one token's KV in attention layers [first, end), or in all of
        them.
        """
        if layers is None:
            return self.token_bytes
        return sum(c.nbytes for c in self.components_of(layers)) // self.page_size

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of one token's KV over all layers, without alignment."""
        shapes = [shape for layer in self.layers for shape in layer.tensors.values()]
        return sum(prod(shape) * self.dtype.itemsize for shape in shapes)

    @cached_property
    def whole(self) -> bool:
        """True if a page is one run of bytes, without padding for alignment."""
        return self.page_bytes == self.token_bytes * self.page_size

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)
