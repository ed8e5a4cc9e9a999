"""The depths at which recurrent state may be kept, in absolute tokens."""

from dataclasses import dataclass
from enum import StrEnum
from math import lcm

from baton.core.errors import ConfigError


class Strategy(StrEnum):
    """The parts of a request's recurrent state that the prefix cache may have."""

    AUTO = "auto"  # extra_buffer for any model with a recurrent layer
    NO_BUFFER = "no_buffer"  # the live state, when the request ends
    EXTRA_BUFFER = "extra_buffer"  # snapshots at grid depths, in slots of their own


@dataclass(frozen=True)
class Grids:
    """The numbers of tokens that snapshots are aligned to.

    kernel_chunk: K, where kernels cut a row. page_size: tokens a page. track_interval: decode steps
    between snapshots, at least. All in tokens; set at start from the model and the options.
    """

    kernel_chunk: int
    page_size: int
    track_interval: int = 256

    def __post_init__(self) -> None:
        """Raise ConfigError, naming both numbers and a value that would work, where they do not
        fit.
        """
        for name in ("kernel_chunk", "page_size", "track_interval"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}")
        small, large = sorted((self.kernel_chunk, self.page_size))
        if large % small:
            works = max(d for d in range(1, self.kernel_chunk + 1) if self._fits(d))
            raise ConfigError(
                f"--page-size {self.page_size} and the model's chunk of {self.kernel_chunk} tokens "
                f"do not divide one another; use --page-size {works}"
            )

    def _fits(self, page_size: int) -> bool:
        return self.kernel_chunk % page_size == 0 and page_size <= self.page_size

    @property
    def checkpoint(self) -> int:
        """G: snapshots lie at its multiples."""
        return max(self.kernel_chunk, self.page_size)

    @property
    def decode(self) -> int:
        """The number of tokens at whose multiples a decoding row is tracked."""
        return lcm(self.checkpoint, self.track_interval)


def resolve(strategy: Strategy, recurrent_layers: int, page_size: int) -> Strategy:
    """Return the strategy that runs. Raises ConfigError where it and the page size exclude each
    other.
    """
    if strategy is Strategy.AUTO:
        strategy = Strategy.EXTRA_BUFFER
    if strategy is Strategy.NO_BUFFER and recurrent_layers and page_size != 1:
        raise ConfigError(
            "--mamba-scheduler-strategy no_buffer caches a request's live state, whose depth is "
            f"any number of tokens, so it needs --page-size 1; got {page_size}. Use --page-size 1, "
            "or extra_buffer"
        )
    return strategy
