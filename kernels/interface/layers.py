"""Abstract kernels of embeddings, projections, norms, activations and experts.

T is the number of tokens of a batch. `float` means float32, bfloat16 or float16. Native kernels
take and return float32 activations whatever the dtype of the weights is.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from baton.kernels.linear import ExpertWeight, Matrix, Table


class LayerKernels(ABC):
    """Kernels that work on each token by itself, without cache or state."""

    @abstractmethod
    def embedding(self, ids: Tensor, table: Table, own: range | None = None) -> Tensor:
        """Look up rows of a table.

        ids:    [T] int64
        table:  [V, K] float, 8-bit or packed; its dtype is that of the products
        own:    the ids whose rows the table has, in order; others give zeros. None: 0 .. V - 1
        returns [T, K], dtype of the table; float32 from native kernels
        """

    @abstractmethod
    def linear(self, x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
        """Compute x W^T + b, summed in float32.

        x:      [T, K] float
        weight: [O, K] float, 8-bit or packed; native kernels alone take packed weights as they are
        bias:   [O] float, or None; float32 for native kernels
        returns [T, O], dtype of x
        """

    @abstractmethod
    def router_logits(self, x: Tensor, weight: Matrix) -> Tensor:
        """Compute x W^T in float32, by which experts are chosen.

        x:      [T, K] float
        weight: [E, K] as of `linear`; of a GPU's kernels in the dtype of x, or in float32
        returns [T, E] float32
        """

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Compute x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32.

        x:      [T, C] or [T, H, C] float
        weight: [C] float; or [H, C], one row a head
        returns shape and dtype of x
        """

    @abstractmethod
    def square_sums(self, x: Tensor, groups: int, group: int) -> Tensor:
        """Sum the squares of each row into one of several columns: x [T, C] float -> [T, groups]
        float32, zeros but in column `group`."""

    @abstractmethod
    def norm_by_sums(
        self, x: Tensor, sums: Tensor, group: int, width: int, weight: Tensor, eps: float
    ) -> Tensor:
        """Compute x / sqrt(sum / width + eps) * weight in float32.

        x:      [T, C] float, a part of the `width` channels that are normed together
        sums:   [T, groups] float32, of squares; those in column `group` are used
        weight: [C] float32
        returns shape and dtype of x
        """

    @abstractmethod
    def swiglu(self, gate_up: Tensor) -> Tensor:
        """Compute silu(gate) * up: gate_up [T, 2 I] float, the gate first -> [T, I], its dtype."""

    @abstractmethod
    def geglu(self, gate_up: Tensor) -> Tensor:
        """Compute gelu(gate) * up with the exact gelu; shapes and dtypes as in swiglu."""

    @abstractmethod
    def relu2(self, x: Tensor) -> Tensor:
        """Compute max(x, 0)^2: x [T, I] float -> shape and dtype of x."""

    @abstractmethod
    def sigmoid_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """Compute x * sigmoid(gate) in float32: x [T, I], gate [T, I or 1] float -> [T, I], dtype
        of x."""

    @abstractmethod
    def add_scaled(self, x: Tensor, y: Tensor, alpha: float) -> Tensor:
        """Compute x + alpha * y: x and y float of one shape and dtype, which the result has."""

    @abstractmethod
    def scaled(self, x: Tensor, factor: float) -> Tensor:
        """Compute factor * x: x float -> its shape and dtype; x itself if the factor is one."""

    @abstractmethod
    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        """Join two tensors of one dtype: x [T, A], y [T, B] float -> [T, A + B]."""

    @abstractmethod
    def select_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """Gather rows: x [T, K] float, rows [n] int64 into T -> [n, K], dtype of x."""

    @abstractmethod
    def apply_rope(self, x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
        """Rotate the first R channels of every head by its token's position, in float32.

        Channel i of the first R / 2 is paired with channel i of the second R / 2. The other
        channels pass through.

        x:         [T, H, D] float, D >= R
        cache:     [max_positions, R] float32, from kernels.rope.rope_cache
        positions: [T] int64, absolute positions
        returns    [T, H, D], dtype of x
        """

    @abstractmethod
    def apply_partial_rope(
        self, x: Tensor, rotated: int, cache: Tensor, positions: Tensor, interleaved: bool
    ) -> Tensor:
        """Rotate the last `rotated` channels of every head and return them alone.

        The two channels of a pair come out `rotated / 2` apart, interleaved or not. Keys and
        queries have the same order, so their products do not change.

        x:           [T, H, D] float, may be strided
        cache:       [max_positions, rotated] float32, from kernels.rope.rope_cache
        positions:   [T] int64, absolute positions
        interleaved: pair channels 2 i and 2 i + 1 of x, rather than i and i + rotated / 2
        returns      [T, H, rotated], dtype of x
        """

    @abstractmethod
    def route_softmax_topk(self, router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        """Choose each token's top-k experts, weighted by a softmax over their logits (Granite).

        router_logits: [T, E] float
        returns weights [T, top_k] float32 and experts [T, top_k] int64
        """

    @abstractmethod
    def route_softmax_grouped(
        self,
        router_logits: Tensor,
        top_k: int,
        groups: int,
        top_groups: int,
        normalised: bool,
        factor: float,
    ) -> tuple[Tensor, Tensor]:
        """Choose each token's top-k experts by a softmax over all experts, within its best groups
        (DeepSeek-V2, arXiv:2405.04434).

        router_logits: [T, E] float32
        groups:     number of equal runs of experts; a group ranks by its likeliest expert
        top_groups: groups that a token may choose from
        normalised: divide a token's weights by their sum
        factor:     multiplies the weights last
        returns weights [T, top_k] float32 and experts [T, top_k] int64
        """

    @abstractmethod
    def route_sigmoid_grouped(
        self,
        router_logits: Tensor,
        correction: Tensor,
        top_k: int,
        groups: int,
        top_groups: int,
        normalised: bool,
        factor: float,
    ) -> tuple[Tensor, Tensor]:
        """Choose each token's top-k experts by corrected sigmoid scores, within its best groups;
        weight them by the scores without the correction (DeepSeek-V3, arXiv:2412.19437).

        router_logits: [T, E] float32
        correction: [E] float32, added to the scores for the choice alone
        groups:     number of equal runs of experts; a group ranks by the sum of its two best scores
        top_groups, normalised, factor: as in route_softmax_grouped
        returns weights [T, top_k] float32 and experts [T, top_k] int64
        """

    @abstractmethod
    def experts_swiglu(
        self, x: Tensor, weights: Tensor, experts: Tensor, w_in: ExpertWeight, w_out: ExpertWeight
    ) -> Tensor:
        """Sum w_out(silu(gate) * up) over each token's experts, weighted by `weights`.

        x:       [T, H] float
        weights: [T, K] float32
        experts: [T, K] int64, index into E
        w_in:    [E, 2 I, H] float, or 8-bit; the gate's rows, then those of the up projection
        w_out:   [E, H, I]; of FP8 and others, the products have one dtype; torch needs rows of a
                 multiple of 16 bytes
        returns  [T, H], dtype of x
        """

    @abstractmethod
    def experts_relu2(
        self, x: Tensor, weights: Tensor, experts: Tensor, w_in: ExpertWeight, w_out: ExpertWeight
    ) -> Tensor:
        """Sum w_out(relu(w_in x)^2) over each token's experts: w_in is [E, I, H]; all else as in
        experts_swiglu."""
