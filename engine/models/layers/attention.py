"""Attention over pages, with grouped query heads; rotary positions or none."""

from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.layout.layout import AttentionShape
from baton.engine.layout.shards import SubBlock
from baton.engine.models.fields import Fields
from baton.engine.models.layers.linear import ColumnLinear, Linear, RowLinear
from baton.engine.models.layers.norm import norm_weight
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of one attention layer. Set by the family's config reader."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # factor on the scores
    bias: bool
    norm_eps: float | None = None  # of a norm over each head of q and k; None: there is none
    zero_centred: bool = False  # that norm's weight is stored as its distance from one
    gated: bool = False  # q_proj makes two vectors a head: the query, and a gate of the output
    input: int | None = None  # channels that q, k and v are made of; None: those of `hidden`

    @property
    def query_block(self) -> SubBlock:
        """The channels of all queries, as ranks divide them."""
        return SubBlock("attention heads", self.heads, self.head_dim)

    @property
    def kv_block(self) -> SubBlock:
        """The channels of all keys, or values. Where there are fewer heads than ranks, several
        ranks keep one.
        """
        return SubBlock("KV heads", self.kv_heads, self.head_dim, shared=True)

    @property
    def cache(self) -> AttentionShape:
        return AttentionShape(self.kv_heads, self.head_dim)

    @staticmethod
    def read(
        fields: Fields, hidden: int, scale: float | None = None, head_dim: int | None = None
    ) -> "AttentionSizes":
        """Read the sizes from the fields that most families share. scale: None for head_dim **
        -0.5.

        head_dim: where the config names none; None: the hidden channels divided by the heads.
        """
        heads = fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", heads)
        head_dim = fields.integer("head_dim", head_dim or hidden // heads)
        if heads % kv_heads:
            raise ConfigError(
                f"{fields.where}: num_attention_heads ({heads}) should be a multiple of "
                f"num_key_value_heads ({kv_heads})"
            )
        return AttentionSizes(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5 if scale is None else scale,
            bias=fields.flag("attention_bias", False),
        )


@dataclass(frozen=True)
class AttentionNames:
    """The checkpoint's names of the tensors whose names differ among families."""

    out: str = "o_proj"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"


_COMMON_NAMES = AttentionNames()


class Attention:
    """o_proj(attention(q, k, v)), with q, k and v projected as one; in some models
    o_proj(attention(q, k, v) * sigmoid(gate)), with the gate before them."""

    mixes = True

    def __init__(
        self,
        scope: Scope,
        sizes: AttentionSizes,
        index: int,
        rope: Tensor | None,
        names: AttentionNames = _COMMON_NAMES,
    ) -> None:
        """index: which of the model's attention layers this is (its place in a page).

        rope: [max positions, rotary channels] float32, as kernels.rope makes it; None: positions
        are not told to the attention.
        """
        self.index = index
        self.kernels = scope.kernels
        self.rope = rope
        self.scale = sizes.scale
        self.head_dim = sizes.head_dim
        q, kv = sizes.query_block, sizes.kv_block
        self.heads, self.kv_heads = scope.shard.part(q), scope.shard.part(kv)
        self.gates = self.heads if sizes.gated else 0
        qkv = {
            "q_proj": (replace(q, width=2 * q.width) if sizes.gated else q,),
            "k_proj": (kv,),
            "v_proj": (kv,),
        }
        then = {"q_proj": partial(gates_first, sizes.head_dim)} if sizes.gated else None
        width = sizes.input or sizes.hidden
        self.qkv: Linear = ColumnLinear(scope, qkv, width, sizes.bias, then)
        self.out = RowLinear(scope, names.out, sizes.hidden, q, sizes.bias)
        self.norm_eps = sizes.norm_eps
        if sizes.norm_eps is not None:
            norms = ((names.q_norm, self.heads), (names.k_norm, self.kv_heads))
            self.head_norms = torch.cat(  # [heads + KV heads, head_dim] float32
                [
                    norm_weight(scope, name, self.head_dim, sizes.zero_centred).expand(n, -1)
                    for name, n in norms
                ]
            )

    def reused(self, index: int, qkv: Linear) -> "Attention":
        """Return these weights for another place in the pages, with another projection of q, k and
        v.
        """
        other = copy(self)
        other.index, other.qkv = index, qkv
        return other

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        gate, qkv = heads[:, : self.gates], heads[:, self.gates :]
        turned = self.heads + self.kv_heads  # q and k are rotated alike, so in one call
        qk, v = qkv[:, :turned], qkv[:, turned:]
        if self.norm_eps is not None:
            qk = self.kernels.rms_norm(qk, self.head_norms, self.norm_eps)
        if self.rope is not None:
            qk = self.kernels.apply_rope(qk, self.rope, step.positions)
        q, k = qk[:, : self.heads], qk[:, self.heads :]
        k_pool, v_pool = step.pages.k[self.index], step.pages.v[self.index]
        self.kernels.kv_write(k, v, k_pool, v_pool, step.token_pages, step.token_offsets)
        step.kv_written(self.index)
        parts = []
        if step.decode is not None:
            rows = step.decode
            parts.append(
                self.kernels.paged_attn_decode(
                    q[: step.decode_tokens],
                    k_pool,
                    v_pool,
                    rows.block_tables,
                    rows.table_rows,
                    rows.kv_lens,
                    rows.kv_lens_host,
                    self.scale,
                    nodes=rows.nodes,
                )
            )
        if step.prefill is not None:
            ragged = step.prefill
            parts.append(
                self.kernels.paged_attn_prefill(
                    q[step.decode_tokens :],
                    k_pool,
                    v_pool,
                    ragged.block_tables,
                    ragged.table_rows,
                    ragged.rows.cu_seqlens,
                    ragged.rows.cu_seqlens_host,
                    ragged.kv_lens,
                    ragged.kv_lens_host,
                    self.scale,
                )
            )
        attended = (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)
        if self.gates:
            attended = self.kernels.sigmoid_gated(attended, gate.flatten(1))
        return self.out(attended)


def gates_first(head_dim: int, rows: Tensor) -> Tensor:
    """Reorder rows [head x (query | gate)] to [gates | queries]."""
    pairs = rows.view(-1, 2, head_dim, *rows.shape[1:])
    return pairs.transpose(0, 1).flip(0).reshape(rows.shape)
