"""The choice of kernels as an option. Its import needs no torch."""

from enum import StrEnum


class KernelChoice(StrEnum):
    AUTO = "auto"  # the fastest that the device has
    TORCH = "torch"
