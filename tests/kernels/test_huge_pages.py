"""Large memory asks for huge pages; small memory, and what a device has, is torch's own."""

import re
from pathlib import Path

import pytest
import torch

from baton.kernels import huge_pages

CPU = torch.device("cpu")
HUGE = 2 << 20


def flags_of(address: int) -> set[str]:
    """Return the kernel's flags of the mapping that contains `address`."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    return set()


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without huge pages"
)
@pytest.mark.parametrize("make", [huge_pages.empty, huge_pages.zeros])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_large_memory_begins_with_a_huge_page(make, dtype):
    memory = make((7, 1 << 20), dtype, CPU)
    assert memory.shape == (7, 1 << 20) and memory.dtype is dtype and memory.is_contiguous()
    assert memory.data_ptr() % HUGE == 0
    assert "hg" in flags_of(memory.data_ptr())
    memory.fill_(3)
    assert torch.equal(memory, torch.full_like(memory, 3))


@pytest.mark.parametrize("shape", [(3, 5), (7, 1 << 20), (0, 4)])
def test_zeros_are_zeros(shape):
    assert torch.equal(huge_pages.zeros(shape, torch.int32, CPU), torch.zeros(shape).int())


def test_a_device_s_memory_is_its_own():
    meta = torch.device("meta")
    assert huge_pages.zeros((7, 1 << 20), torch.float32, meta).device == meta
    assert huge_pages.empty((7, 1 << 20), torch.float32, meta).device == meta
