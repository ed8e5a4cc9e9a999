"""Kernels of the native library, for float32 activations on a CPU."""

from collections.abc import Sequence

from torch import Tensor

from baton.kernels.attention import (
    kv_write_native,
    paged_attn_decode_native,
    paged_attn_prefill_native,
)
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.conv1d import (
    GatedConvRows,
    gated_conv_step_native,
    plan_gated_conv_prefill_native,
)
from baton.kernels.delta_mixer import (
    DeltaInputs,
    DeltaLayers,
    DeltaRows,
    DeltaWeights,
    gated_delta_step_native,
    plan_delta_prefill_native,
)
from baton.kernels.elementwise import (
    add_scaled_native,
    concat_native,
    geglu_native,
    relu2_native,
    scaled_native,
    select_rows_native,
    sigmoid_gated_native,
    swiglu_native,
)
from baton.kernels.host_plan import HostPlan
from baton.kernels.linear import Matrix, Table, Weight, embedding_native, linear_native
from baton.kernels.mamba2 import (
    Mamba2Layers,
    Mamba2Rows,
    Mamba2Weights,
    mamba2_step_native,
    plan_mamba2_prefill_native,
)
from baton.kernels.mla import (
    apply_partial_rope_native,
    from_latent_native,
    latent_write_native,
    mla_decode_native,
    mla_prefill_native,
    mla_query_native,
)
from baton.kernels.moe import (
    experts_relu2_native,
    experts_swiglu_native,
    route_sigmoid_grouped_native,
    route_softmax_grouped_native,
    route_softmax_topk_native,
)
from baton.kernels.native.recorder import Native
from baton.kernels.ngrams import guess_ngrams_native
from baton.kernels.norm import norm_by_sums_native, rms_norm_native, square_sums_native
from baton.kernels.rope import apply_rope_native
from baton.kernels.sampling import sample_tokens_native
from baton.kernels.torch_kernels import TorchKernels
from baton.kernels.verify import Accepted
from baton.kernels.verify_native import (
    gated_conv_commit_native,
    gated_conv_verify_native,
    gated_delta_commit_native,
    gated_delta_verify_native,
    mamba2_commit_native,
    mamba2_verify_native,
)


class NativeKernels(Kernels):
    """The kernels in C++. While the library records, they append to the recording.

    Sampling, some of which is left to torch, runs outside of recorded steps.
    It has more than 25 methods because it has one method a kernel.
    """

    LEFT_TO_TORCH = frozenset({"add_token_counts", "apply_penalties"})

    add_token_counts = staticmethod(TorchKernels.add_token_counts)
    apply_penalties = staticmethod(TorchKernels.apply_penalties)

    def __init__(self, native: Native) -> None:
        self._native = native

    @property
    def native(self) -> Native:
        return self._native

    def embedding(self, ids: Tensor, table: Table, own: range | None = None) -> Tensor:
        return embedding_native(self._native, ids, table, own)

    def linear(self, x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
        return linear_native(self._native, x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm_native(self._native, x, weight, eps)

    def square_sums(self, x: Tensor, groups: int, group: int) -> Tensor:
        return square_sums_native(self._native, x, groups, group)

    def norm_by_sums(
        self, x: Tensor, sums: Tensor, group: int, width: int, weight: Tensor, eps: float
    ) -> Tensor:
        return norm_by_sums_native(self._native, x, sums, group, width, weight, eps)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        return swiglu_native(self._native, gate_up)

    def geglu(self, gate_up: Tensor) -> Tensor:
        return geglu_native(self._native, gate_up)

    def relu2(self, x: Tensor) -> Tensor:
        return relu2_native(self._native, x)

    def sigmoid_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return sigmoid_gated_native(self._native, x, gate)

    def add_scaled(self, x: Tensor, y: Tensor, alpha: float) -> Tensor:
        return add_scaled_native(self._native, x, y, alpha)

    def scaled(self, x: Tensor, factor: float) -> Tensor:
        return scaled_native(self._native, x, factor)

    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        return concat_native(self._native, x, y)

    def select_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return select_rows_native(self._native, x, rows)

    def apply_rope(self, x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
        return apply_rope_native(self._native, x, cache, positions)

    def apply_partial_rope(
        self, x: Tensor, rotated: int, cache: Tensor, positions: Tensor, interleaved: bool
    ) -> Tensor:
        return apply_partial_rope_native(self._native, x, rotated, cache, positions, interleaved)

    def route_softmax_topk(self, router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        return route_softmax_topk_native(self._native, router_logits, top_k)

    def route_softmax_grouped(
        self,
        router_logits: Tensor,
        top_k: int,
        groups: int,
        top_groups: int,
        normalised: bool,
        factor: float,
    ) -> tuple[Tensor, Tensor]:
        return route_softmax_grouped_native(
            self._native, router_logits, top_k, groups, top_groups, normalised, factor
        )

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
        return route_sigmoid_grouped_native(
            self._native, router_logits, correction, top_k, groups, top_groups, normalised, factor
        )

    def experts_swiglu(
        self, x: Tensor, weights: Tensor, experts: Tensor, w_in: Weight, w_out: Weight
    ) -> Tensor:
        return experts_swiglu_native(self._native, x, weights, experts, w_in, w_out)

    def experts_relu2(
        self, x: Tensor, weights: Tensor, experts: Tensor, w_in: Weight, w_out: Weight
    ) -> Tensor:
        return experts_relu2_native(self._native, x, weights, experts, w_in, w_out)

    def kv_write(
        self,
        k: Tensor,
        v: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        token_pages: Tensor,
        token_offsets: Tensor,
    ) -> None:
        kv_write_native(self._native, k, v, k_pool, v_pool, token_pages, token_offsets)

    def latent_write(
        self, latents: Tensor, pool: Tensor, token_pages: Tensor, token_offsets: Tensor
    ) -> None:
        latent_write_native(self._native, latents, pool, token_pages, token_offsets)

    def paged_attn_prefill(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_q_host: Sequence[int],
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        scale: float,
    ) -> Tensor:
        return paged_attn_prefill_native(
            self._native,
            q,
            k_pool,
            v_pool,
            block_tables,
            table_rows,
            cu_seqlens_q,
            cu_seqlens_q_host,
            kv_lens,
            kv_lens_host,
            scale,
        )

    def paged_attn_decode(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        scale: float,
    ) -> Tensor:
        return paged_attn_decode_native(
            self._native, q, k_pool, v_pool, block_tables, table_rows, kv_lens, kv_lens_host, scale
        )

    def mla_query(self, plain: Tensor, rotated: Tensor, up: Tensor) -> Tensor:
        return mla_query_native(self._native, plain, rotated, up)

    def from_latent(self, mean: Tensor, up: Tensor, key_rows: int) -> Tensor:
        return from_latent_native(self._native, mean, up, key_rows)

    def mla_decode(
        self,
        q: Tensor,
        pool: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        rank: int,
        scale: float,
    ) -> Tensor:
        return mla_decode_native(
            self._native, q, pool, block_tables, table_rows, kv_lens, kv_lens_host, rank, scale
        )

    def mla_prefill(
        self,
        plain: Tensor,
        rotated: Tensor,
        pool: Tensor,
        up: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_q_host: Sequence[int],
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        scale: float,
    ) -> Tensor:
        return mla_prefill_native(
            self._native,
            plain,
            rotated,
            pool,
            up,
            block_tables,
            table_rows,
            cu_seqlens_q,
            cu_seqlens_q_host,
            kv_lens,
            kv_lens_host,
            scale,
        )

    def gated_conv_step(
        self,
        bcx: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_pool: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
        has_initial: Tensor | None,
    ) -> Tensor:
        return gated_conv_step_native(
            self._native, bcx, weight, bias, conv_pool, read_slots, write_slots, has_initial
        )

    def plan_gated_conv_prefill(
        self,
        cu_seqlens_host: Sequence[int],
        prefix_lens_host: Sequence[int],
        width: int,
        snapshots: SnapshotPlan | None,
    ) -> HostPlan[GatedConvRows]:
        return plan_gated_conv_prefill_native(
            self._native, cu_seqlens_host, prefix_lens_host, width, snapshots
        )

    def mamba2_step(
        self,
        weights: Mamba2Weights,
        zxbcdt: Tensor,
        conv_pool: Tensor,
        ssm_pool: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
        has_initial: Tensor | None,
    ) -> Tensor:
        return mamba2_step_native(
            self._native, weights, zxbcdt, conv_pool, ssm_pool, read_slots, write_slots, has_initial
        )

    def plan_mamba2_prefill(
        self,
        cu_seqlens_host: Sequence[int],
        prefix_lens_host: Sequence[int],
        width: int,
        chunk_size: int,
        snapshots: SnapshotPlan | None,
    ) -> HostPlan[Mamba2Rows]:
        return plan_mamba2_prefill_native(
            self._native, cu_seqlens_host, prefix_lens_host, width, chunk_size, snapshots
        )

    def gated_delta_step(
        self,
        weights: DeltaWeights,
        inputs: DeltaInputs,
        conv_pool: Tensor,
        state_pool: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
        has_initial: Tensor | None,
    ) -> Tensor:
        return gated_delta_step_native(
            self._native,
            weights,
            inputs,
            conv_pool,
            state_pool,
            read_slots,
            write_slots,
            has_initial,
        )

    def plan_delta_prefill(
        self,
        cu_seqlens_host: Sequence[int],
        prefix_lens_host: Sequence[int],
        width: int,
        snapshots: SnapshotPlan | None,
    ) -> HostPlan[DeltaRows]:
        return plan_delta_prefill_native(
            self._native, cu_seqlens_host, prefix_lens_host, width, snapshots
        )

    def guess_ngrams(
        self,
        tokens: Tensor,
        rows: Tensor,
        ends: Tensor,
        searched: int,
        sizes: tuple[int, int],
        most: int,
    ) -> tuple[Tensor, Tensor]:
        return guess_ngrams_native(self._native, tokens, rows, ends, searched, sizes, most)

    def gated_conv_verify(
        self,
        bcx: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_pool: Tensor,
        read_slots: Tensor,
        has_initial: Tensor | None,
        kept: Tensor,
    ) -> Tensor:
        return gated_conv_verify_native(
            self._native, bcx, weight, bias, conv_pool, read_slots, has_initial, kept
        )

    def gated_conv_commit(
        self, kept: Tensor, width: int, conv_pools: Tensor, accepted: Accepted
    ) -> None:
        gated_conv_commit_native(self._native, kept, width, conv_pools, accepted)

    def mamba2_verify(
        self,
        weights: Mamba2Weights,
        zxbcdt: Tensor,
        conv_pool: Tensor,
        ssm_pool: Tensor,
        read_slots: Tensor,
        has_initial: Tensor | None,
        kept: Tensor,
    ) -> Tensor:
        return mamba2_verify_native(
            self._native, weights, zxbcdt, conv_pool, ssm_pool, read_slots, has_initial, kept
        )

    def mamba2_commit(
        self,
        layers: Mamba2Layers,
        kept: Tensor,
        conv_pools: Tensor,
        ssm_pools: Tensor,
        accepted: Accepted,
    ) -> None:
        mamba2_commit_native(self._native, layers, kept, conv_pools, ssm_pools, accepted)

    def gated_delta_verify(
        self,
        weights: DeltaWeights,
        inputs: DeltaInputs,
        conv_pool: Tensor,
        state_pool: Tensor,
        read_slots: Tensor,
        has_initial: Tensor | None,
        kept: Tensor,
    ) -> Tensor:
        return gated_delta_verify_native(
            self._native, weights, inputs, conv_pool, state_pool, read_slots, has_initial, kept
        )

    def gated_delta_commit(
        self,
        layers: DeltaLayers,
        kept: Tensor,
        conv_pools: Tensor,
        state_pools: Tensor,
        accepted: Accepted,
    ) -> None:
        gated_delta_commit_native(self._native, layers, kept, conv_pools, state_pools, accepted)

    def sample_tokens(
        self,
        logits: Tensor,
        rows: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        positions: Tensor,
        filters: tuple[Tensor, Tensor, Tensor] | None,
    ) -> Tensor:
        return sample_tokens_native(
            self._native, logits, rows, temperature, seeds, positions, filters
        )
