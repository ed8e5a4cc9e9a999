"""The fingerprint of a worker's memory layout: a flat map of names to values.

It is small enough to read in an error message. `rpc/handshake.py` compares two of them."""

import sys

import xxhash

from baton.engine.layout.layout import Component, PageLayout, SlotLayout
from baton.proto.version import PROTOCOL_MAJOR
from baton.rpc.handshake import SHARD, SYNTHETIC


def layout_fingerprint(
    slots: SlotLayout,
    pages: PageLayout,
    *,
    model: str,
    weights: str,
    dtype: str,
    chunk_size: int,
    ranks: int = 1,
    synthetic_acceptance: float | None = None,
) -> dict[str, str]:
    """Describe the layout of a worker's slots and pages, those of the undivided model.

    model, weights: names that are equal on every machine (a hash, not a path).

    synthetic_acceptance: of a worker whose answers are not the model's: others do not mix with it.
    chunk_size: the kernel chunk, in tokens. ranks: of the worker's engine. Peers with other numbers
    work together; one of a release that does not divide states refuses all numbers but 1.
    """
    drawn = {} if synthetic_acceptance is None else {SYNTHETIC: f"{synthetic_acceptance:g}"}
    return drawn | {
        "protocol": str(PROTOCOL_MAJOR),
        "model": model,
        "weights": weights,
        "dtype": dtype,
        "conv_dtype": _name(slots.conv_dtype),
        "ssm_dtype": _name(slots.ssm_dtype),
        "kv_dtype": _name(pages.dtype),
        "chunk_size": str(chunk_size),
        "page_size": str(pages.page_size),
        "slot_layout": _components(slots.components, slots.slot_bytes),
        "page_layout": _components(pages.components, pages.page_bytes),
        SHARD: f"0/{ranks}",
        "byte_order": sys.byteorder,
    }


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _components(components: tuple[Component, ...], block_bytes: int) -> str:
    """Return a count, a size, and a hash of every name, layer, offset, shape and dtype."""
    listed = ";".join(
        f"{c.name}{c.layer}@{c.offset}:{'x'.join(map(str, c.shape))}:{_name(c.dtype)}"
        for c in components
    )
    digest = xxhash.xxh3_64_hexdigest(listed.encode())
    return f"{len(components)} tensors, {block_bytes} bytes, {digest}"
