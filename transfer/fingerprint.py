"""What two workers must agree on before one may write into the other's memory.

A fingerprint is a flat map of names to values, small enough to read in an error message. A name
that only one side has is a difference too: the comparison fails closed.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from baton.engine.memory.layout import Component, PageLayout, SlotLayout
from baton.proto.version import PROTOCOL_MAJOR
from baton.transfer.errors import FingerprintError

ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    name: str
    ours: str
    theirs: str


def layout_fingerprint(
    slots: SlotLayout,
    pages: PageLayout,
    *,
    model: str,
    weights: str,
    dtype: str,
    chunk_size: int,
    shard: str = "0/1",
) -> dict[str, str]:
    """model, weights: whatever names them the same on every machine (a hash, not a path).

    chunk_size: the kernel chunk, in tokens. shard: "rank/size".
    """
    return {
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
        "shard": shard,
        "byte_order": sys.byteorder,
    }


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[Difference]:
    """Every name whose values differ, or that one side lacks, in alphabetical order."""
    pairs = (
        Difference(name, ours.get(name, ABSENT), theirs.get(name, ABSENT))
        for name in sorted(ours.keys() | theirs.keys())
    )
    return [pair for pair in pairs if pair.ours != pair.theirs]


def check(ours: Mapping[str, str], theirs: Mapping[str, str], peer: str) -> None:
    """Raises FingerprintError that names both values of every difference."""
    found = differences(ours, theirs)
    if not found:
        return
    listed = "; ".join(f"{d.name}: ours {d.ours}, theirs {d.theirs}" for d in found)
    raise FingerprintError(
        f"{peer} cannot exchange state with this worker: {listed}. Start both with the same "
        "checkpoint and the same options",
        expected="; ".join(f"{d.name}={d.ours}" for d in found),
        actual="; ".join(f"{d.name}={d.theirs}" for d in found),
    )


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _components(components: tuple[Component, ...], block_bytes: int) -> str:
    """A count, a size and a hash of every name, layer, offset, shape and dtype."""
    listed = ";".join(
        f"{c.name}{c.layer}@{c.offset}:{'x'.join(map(str, c.shape))}:{_name(c.dtype)}"
        for c in components
    )
    digest = xxhash.xxh3_64_hexdigest(listed.encode())
    return f"{len(components)} tensors, {block_bytes} bytes, {digest}"
