"""Attention of a layer of multi-token prediction, whose keys and values are written alone."""

from dataclasses import replace
from functools import partial

from torch import Tensor

from baton.core.errors import InvariantError
from baton.engine.models.layers.attention import AttentionSizes, gates_first
from baton.engine.models.layers.linear import ColumnLinear, RowLinear
from baton.engine.models.layers.norm import norm_weight
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step

# The entry at place 0 has no predecessor and means nothing.
FIRST_KEY = 1


class MtpAttention:
    """`Attention` with a projection of queries and another of keys and values: steps write the keys
    and values of all tokens, and drafts alone have queries."""

    mixes = True

    def __init__(
        self, scope: Scope, sizes: AttentionSizes, index: int, rope: Tensor | None
    ) -> None:
        """index, rope: as of Attention."""
        self.index = index
        self.kernels = scope.kernels
        self.rope = rope
        self.scale = sizes.scale
        self.head_dim = sizes.head_dim
        q, kv = sizes.query_block, sizes.kv_block
        self.heads, self.kv_heads = scope.shard.part(q), scope.shard.part(kv)
        self.gates = self.heads if sizes.gated else 0
        rows = {"q_proj": (replace(q, width=2 * q.width) if sizes.gated else q,)}
        then = {"q_proj": partial(gates_first, sizes.head_dim)} if sizes.gated else None
        self.query = ColumnLinear(scope, rows, sizes.hidden, sizes.bias, then)
        both = {"k_proj": (kv,), "v_proj": (kv,)}
        self.kv = ColumnLinear(scope, both, sizes.hidden, sizes.bias)
        self.out = RowLinear(scope, "o_proj", sizes.hidden, q, sizes.bias)
        self.norm_eps = sizes.norm_eps
        if sizes.norm_eps is not None:
            self.q_norm, self.k_norm = (  # [heads, head_dim], [KV heads, head_dim] float32
                norm_weight(scope, name, self.head_dim, sizes.zero_centred)
                .expand(heads, -1)
                .contiguous()
                for name, heads in (("q_norm", self.heads), ("k_norm", self.kv_heads))
            )

    def write(self, x: Tensor, step: Step) -> None:
        """Write the keys and values of all tokens. x: [T, hidden]"""
        kv = self.kv(x).view(x.shape[0], -1, self.head_dim)
        k, v = kv[:, : self.kv_heads], kv[:, self.kv_heads :]
        if self.norm_eps is not None:
            k = self.kernels.rms_norm(k, self.k_norm, self.norm_eps)
        if self.rope is not None:
            k = self.kernels.apply_rope(k, self.rope, step.positions)
        pools = step.pages.k[self.index], step.pages.v[self.index]
        self.kernels.kv_write(k, v, *pools, step.token_pages, step.token_offsets)
        step.kv_written(self.index)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        self.write(x, step)
        rows = step.decode
        if rows is None or step.prefill is not None:
            raise InvariantError("drafts have one token a row, and there is no row, or a prompt")
        heads = self.query(x).view(x.shape[0], -1, self.head_dim)
        gate, q = heads[:, : self.gates], heads[:, self.gates :]
        if self.norm_eps is not None:
            q = self.kernels.rms_norm(q, self.q_norm, self.norm_eps)
        if self.rope is not None:
            q = self.kernels.apply_rope(q, self.rope, step.positions)
        attended = self.kernels.paged_attn_decode(
            q,
            step.pages.k[self.index],
            step.pages.v[self.index],
            rows.block_tables,
            rows.table_rows,
            rows.kv_lens,
            rows.kv_lens_host,
            self.scale,
            first_key=FIRST_KEY,
            nodes=rows.nodes,
        ).flatten(1)
        if self.gates:
            attended = self.kernels.sigmoid_gated(attended, gate.flatten(1))
        return self.out(attended)
