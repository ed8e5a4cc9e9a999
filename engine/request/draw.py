"""The sampling of one token, and its numbers as a record of a table."""

from array import array
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from baton.core.sampling_params import SamplingParams

_SIGN = 1 << 63
# Parameters that are packed as they are, by their names and in the order of the kernels' arguments.
FILTERS = {"top_k": np.int64, "top_p": np.float64, "min_p": np.float64}
PENALTIES = {
    "repetition_penalty": np.float64,
    "presence_penalty": np.float64,
    "frequency_penalty": np.float64,
}
_filters, _penalties = attrgetter(*FILTERS), attrgetter(*PENALTIES)
_NO_FILTERS = _filters(SamplingParams())

DRAW_RECORD = np.dtype(
    [
        ("special", np.bool_),  # not plain; a plain draw needs none of what follows
        ("random", np.bool_),
        ("filtered", np.bool_),  # by any of FILTERS
        ("penalised", np.bool_),
        ("biased", np.bool_),
        ("short", np.bool_),
        ("masked", np.bool_),
        ("asks", np.bool_),  # for log probabilities
        ("seed", np.int64),  # 64 bits, the highest as the sign
        ("temperature", np.float64),
        *FILTERS.items(),
        *PENALTIES.items(),
    ]
)
"""The numbers of a draw. A step packs those of all its draws by columns."""

DrawRecords = npt.NDArray[np.void]
"""[n] DRAW_RECORD."""


class Draw(NamedTuple):
    """The sampling of a token from the logits of its row's last token."""

    sampling: SamplingParams
    short: bool  # its stop tokens must not come yet (min_tokens)
    allowed: "array[int] | None"  # a mask of the tokens that may come, 64 a word; None: all

    @property
    def plain(self) -> bool:
        """True if it takes the likeliest token of the logits as they are, and no more is asked."""
        return self.sampling.plain and not self.short and self.allowed is None

    @property
    def record(self) -> tuple[object, ...]:
        """The fields of its DRAW_RECORD."""
        sampling = self.sampling
        seed, filters = sampling.seed or 0, _filters(sampling)
        return (
            not self.plain,
            not sampling.greedy,
            filters != _NO_FILTERS,
            sampling.penalised,
            bool(sampling.logit_bias),
            self.short,
            self.allowed is not None,
            sampling.logprobs is not None,
            seed - 2 * _SIGN if seed >= _SIGN else seed,
            sampling.temperature,
            *filters,
            *_penalties(sampling),
        )
