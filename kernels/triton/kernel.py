"""The decorator of kernels that are launched: it keeps Triton from compiling one again for what
changes from step to step.

Triton compiles a variant for pointers that are divisible by 16 and another for those that are not,
and variants for integers that are one, divisible by 16, or neither. All requests wait meanwhile.
The indices of a step are views of one packed copy, so whether they are divisible changes with the
number of requests. They are read one number at a time, where alignment gains nothing. Activations,
weights, states and pages always lie at multiples of 16: their alignment makes loads wide.
"""

import inspect
from collections.abc import Callable

import triton
from triton.runtime.jit import JITFunction

# Names that mean the same in all kernels: of pointers whose alignment is not looked at,
INDICES = frozenset(
    {
        "read_slots", "write_slots", "has_initial", "track_slots", "track_counts", "accepted",
        "rows", "starts", "ends", "slots", "cu_seqlens", "nodes",
        "table_rows", "cu_seqlens_q", "kv_lens", "kv_ends", "pages", "offsets", "positions",
        "token_ids", "count_rows", "repetition", "presence", "frequency",
    }
)  # fmt: skip
ROW = "row_"  # and what pointers to a number for each row of a step begin with,
# and of integers whose value is not.
COUNTS = frozenset({"tokens", "total", "blocks", "number", "parts"})


def kernel(function: Callable[..., None]) -> JITFunction:
    """Compile `function` by Triton, for any value of `COUNTS` and any alignment of `INDICES`
    and of numbers of rows."""
    names = inspect.signature(function).parameters
    return triton.jit(
        do_not_specialize=[name for name in names if name in COUNTS],
        do_not_specialize_on_alignment=[
            name for name in names if name in INDICES or name.startswith(ROW)
        ],
    )(function)
