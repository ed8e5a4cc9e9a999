"""The rates of one file with a prefix: written and read as the tier does, and read plainly."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.bench.tiers import host_copies
from baton.bench.transfer.pools import PAGES
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.tiers.copy_thread import Copy
from baton.engine.tiers.file_names import FileNames
from baton.engine.tiers.prefix_file import digest_of, read_file, write_file


def measure(folder: Path, seed: int) -> dict[str, float]:
    """Write a prefix into a file of `folder` and read it again, each once; return GB/s.

    file_load_share: of a plain read of the same file into the same pages. digest_gb_s: the digests
    alone, which both need. seed: of where its pages lie.
    """
    slots, pages = host_copies.pools()
    taken = random.Random(seed).sample(range(len(pages)), host_copies.PAGES_OF_PREFIX)
    kept = HostBytes(pages.view(-1).numpy())
    views = [kept.view(page * PAGES.page_bytes, PAGES.page_bytes) for page in taken]
    blocks = [HostBytes(slots[1].numpy()).view(0, slots.shape[1]), *views]
    nbytes = sum(map(len, blocks))
    path, copy = folder / "salt" / "prefix.0", Copy(nbytes)
    mac = FileNames(b"k" * 32, "bench", page_size=1)
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - began

    with timed("file_write"):
        write_file(path, blocks, lambda header: mac.mac("prefix", header), copy)
    with timed("read"), path.open("rb", buffering=0) as file:
        at = path.stat().st_size - nbytes
        for block in blocks:
            at += os.preadv(file.fileno(), [block], at)
    with timed("file_load"):
        sizes, wanted = [len(block) for block in blocks], dict(enumerate(blocks))
        read_file(path, sizes, wanted, lambda header: mac.mac("prefix", header), copy)
    with timed("digest"):
        for block in blocks:
            digest_of(block)
    return {f"{name}_gb_s": nbytes / each / 1e9 for name, each in seconds.items()} | {
        "file_load_share": seconds["read"] / seconds["file_load"]
    }
