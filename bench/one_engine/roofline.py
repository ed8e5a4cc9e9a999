"""The limits of this machine for a decode step or a prompt, from rates measured in this run."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.engine.assembly.loader import declared_weights
from baton.engine.layout.layout import PageLayout
from baton.engine.loading.eight_bit_part import EightBitPart
from baton.engine.loading.rounding import Rounding
from baton.engine.loading.scales import EIGHT_BIT
from baton.engine.settings.config import ModelConfig
from baton.kernels.base import Kernels
from baton.kernels.eight_bit_weight import EightBitWeight
from baton.kernels.linear import PackedWeight, packs

_READ_BYTES = 512 << 20  # far above any cache
_HOT_BYTES = 1 << 20  # of weight: what a core keeps in its cache
_EMBEDDING = "embed_tokens.weight"


def read_bandwidth() -> float:
    """Return the bytes a second that all of torch's threads read together."""
    memory = torch.ones(_READ_BYTES // 4)
    return memory.nbytes / _fastest(memory.sum, 5)


def gemm_rate(
    kernels: Kernels, rows: int, out: int, columns: int, weight: Tensor | EightBitPart
) -> float:
    """Return the FLOP a second of the faster of torch's product and ours; of 8 bits, of ours.

    x [rows, columns] times weight [columns, out], in the weight's dtype. Measured with the whole
    weight and with the outputs that fit a core's cache: the first may wait for memory, and in the
    second a call's overhead is a larger part.
    """
    values = weight if isinstance(weight, Tensor) else weight.values
    hot = max(64, min(out, _HOT_BYTES // (columns * values.dtype.itemsize)))
    x = torch.randn(rows, columns)
    return max(
        2 * rows * kept * columns / _product_seconds(kernels, x, weight, kept)
        for kept in {hot, out}
    )


def _product_seconds(
    kernels: Kernels, x: Tensor, weight: Tensor | EightBitPart, kept: int
) -> float:
    """Return the seconds of x times the first `kept` rows of `weight`."""
    if isinstance(weight, EightBitPart):
        values, scales = weight.values[:kept], weight.scales[:kept]
        dtype = torch.bfloat16 if packs(kernels.native, torch.bfloat16) else torch.float32
        part = EightBitWeight.of(values, scales, weight.group, dtype)
        return _fastest(lambda: kernels.linear(x, part, None), 5)
    dense = weight[:kept]
    cast = x.to(dense.dtype)
    wide = x if kernels.native is not None else cast
    ours = PackedWeight.of(dense) if packs(kernels.native, dense.dtype) else dense
    return min(
        _fastest(lambda: F.linear(cast, dense), 5),
        _fastest(lambda: kernels.linear(wide, ours, None), 5),
    )


@dataclass(frozen=True)
class Roofline:
    """The seconds that the limits allow."""

    seconds: float  # each operation at the slower of its bytes and its arithmetic
    bandwidth_seconds: float  # all bytes, nothing else


class Machine:
    """The rates that one model depends on, measured once a repeat."""

    def __init__(self, model: ModelConfig, weight_dtype: torch.dtype, kernels: Kernels) -> None:
        self._model = model
        self._dtype = weight_dtype
        self._kernels = kernels
        self._products = self.products(model)
        self.read_bytes_s = read_bandwidth()

    @staticmethod
    def products(model: ModelConfig) -> Counter[tuple[int, int]]:
        """Return the shape [out, columns] of every weight matrix that a token meets, and how
        often.
        """
        shapes = declared_weights(model).shapes
        products = Counter(
            (shape[0], shape[1])
            for name, shape in shapes.items()
            if len(shape) == 2 and not name.endswith(_EMBEDDING)
        )
        if "lm_head.weight" not in shapes:
            products[model.vocab_size, model.hidden_size] += 1  # tied to the embedding
        return products

    def decode_step(self, rows: int, kv_tokens: int) -> Roofline:
        """Return the limits of one token for each of `rows` sequences of `kv_tokens` tokens."""
        model = self._model
        state = sum(_bytes(r.ssm, model.ssm_dtype) + _bytes(r.conv, model.conv_dtype)
                    for r in model.recurrent)  # fmt: skip
        kv = PageLayout(model.attention, page_size=1, dtype=model.dtype).token_bytes
        # State is read and written; its arithmetic, like attention's, takes less than its bytes.
        moved = rows * (2 * state + kv_tokens * kv) / self.read_bytes_s
        return self._with_products(rows, moved)

    def prompt(self, tokens: int, head_rows: int) -> Roofline:
        """Return the limits of `tokens` prompt tokens in one step, with logits of `head_rows`.

        Counts products alone.
        """
        return self._with_products(tokens, 0.0, head_rows)

    def _with_products(self, rows: int, moved: float, head_rows: int | None = None) -> Roofline:
        seconds = bandwidth = moved
        for (out, columns), count in self._products.items():
            is_head = out == self._model.vocab_size
            here = head_rows if is_head and head_rows is not None else rows
            read = out * columns * self._dtype.itemsize / self.read_bytes_s
            arithmetic = 2 * here * out * columns / self._rate(here, out, columns)
            seconds += count * max(read, arithmetic)
            bandwidth += count * read
        return Roofline(seconds, bandwidth)

    def _rate(self, rows: int, out: int, columns: int) -> float:
        dense = torch.randn(min(out, 4096), columns)
        weight: Tensor | EightBitPart = (
            Rounding(self._dtype).of(dense) if self._dtype in EIGHT_BIT else dense.to(self._dtype)
        )
        return gemm_rate(self._kernels, rows, out, columns, weight)


def _bytes(shape: tuple[int, ...] | None, dtype: torch.dtype) -> int:
    return prod(shape) * dtype.itemsize if shape else 0


def _fastest(function: Callable[[], object], times: int) -> float:
    """Return the seconds of the fastest call, which was the least disturbed."""
    function()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
