"""Multi-head latent attention: what is cached of a token is one latent for all heads."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.engine.layout.layout import LatentShape
from baton.engine.layout.shards import SubBlock
from baton.engine.models.fields import Fields
from baton.engine.models.layers.linear import ColumnLinear, RowLinear, WholeLinear
from baton.engine.models.scope import Scope
from baton.engine.models.step import DecodeRows, Step


@dataclass(frozen=True)
class MlaSizes:
    """The sizes of one layer. Set by the family's config reader."""

    hidden: int
    heads: int
    rank: int  # of the latent that keys and values are made of
    q_rank: int | None  # of the one that queries are made of; None: they have none
    plain: int  # channels of a head's key that are not rotated
    rotated: int  # those that are, in models with positions; one key's for all heads
    value: int  # channels of a head's value
    scale: float  # factor on the scores
    bias: bool  # of every projection but those of single heads
    interleaved: bool  # channels 2 i and 2 i + 1 are rotated together, not i and i + rotated / 2
    norm_eps: float = 1e-6  # of the latents' norms, whatever the model's own

    @property
    def cache(self) -> LatentShape:
        return LatentShape(self.rank + self.rotated)

    @staticmethod
    def read(fields: Fields, hidden: int, score_factor: float = 1.0) -> "MlaSizes":
        """Read the sizes from the fields that the families share.

        score_factor: on the scores, beside (channels of a key) ** -0.5.
        """
        plain, rotated = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
        return MlaSizes(
            hidden=hidden,
            heads=fields.integer("num_attention_heads"),
            rank=fields.integer("kv_lora_rank"),
            q_rank=fields.integer("q_lora_rank") if fields.has("q_lora_rank") else None,
            plain=plain,
            rotated=rotated,
            value=fields.integer("v_head_dim"),
            scale=(plain + rotated) ** -0.5 * score_factor,
            bias=fields.flag("attention_bias", False),
            interleaved=fields.flag("rope_interleave", True),
        )


class Mla:
    """o_proj(attention(q, latents)); decode on the latents themselves, prefill on what they
    expand to. Ranks divide the heads; each caches all latents."""

    mixes = True

    def __init__(
        self,
        scope: Scope,
        sizes: MlaSizes,
        index: int,
        rope: Tensor | None,
        first_key: int = 0,
    ) -> None:
        """index: which of the model's latent attention layers this is (its place in a page).

        rope: [max positions, rotated] float32, as kernels.rope makes it; None: positions are not
        told to the attention. first_key: the first token that decode rows attend to.
        """
        self.index = index
        self.first_key = first_key
        self.kernels = scope.kernels
        self.sizes = sizes
        self.rope = rope
        block = SubBlock("attention heads", sizes.heads)
        q_rows = (replace(block, width=sizes.plain + sizes.rotated),)
        if sizes.q_rank is None:
            self.q_down = None
            self.q_up = ColumnLinear(scope, {"q_proj": q_rows}, sizes.hidden)
        else:
            self.q_down = WholeLinear(scope, "q_a_proj", sizes.q_rank, sizes.hidden, sizes.bias)
            self.q_norm = scope.tensor("q_a_layernorm.weight", sizes.q_rank, dtype=torch.float32)
            self.q_up = ColumnLinear(scope, {"q_b_proj": q_rows}, sizes.q_rank)
        width = sizes.rank + sizes.rotated
        self.down = WholeLinear(scope, "kv_a_proj_with_mqa", width, sizes.hidden, sizes.bias)
        self.norm = scope.tensor("kv_a_layernorm.weight", sizes.rank, dtype=torch.float32)
        rows = replace(block, width=sizes.plain + sizes.value)
        up = scope.part("kv_b_proj.weight", (rows.places, sizes.rank), (rows,))
        self.up = up.view(scope.shard.part(block), -1, sizes.rank)  # [heads, plain + value, rank]
        values = replace(block, width=sizes.value)
        self.out = RowLinear(scope, "o_proj", sizes.hidden, values, sizes.bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        sizes = self.sizes
        q = self._queries(x)
        turned = self._rotated(q, step.positions)
        self.write(x, step)
        pool = step.pages.latents[self.index]
        plain = q[..., : sizes.plain]
        done = step.decode_tokens
        parts = []
        if step.decode is not None:
            parts.append(self._decode(plain[:done], turned[:done], pool, step.decode))
        if step.prefill is not None:
            ragged = step.prefill
            parts.append(
                self.kernels.mla_prefill(
                    plain[done:],
                    turned[done:],
                    pool,
                    self.up,
                    ragged.block_tables,
                    ragged.table_rows,
                    ragged.rows.cu_seqlens,
                    ragged.rows.cu_seqlens_host,
                    ragged.kv_lens,
                    ragged.kv_lens_host,
                    sizes.scale,
                )
            )
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.out(attended.flatten(1))

    def write(self, x: Tensor, step: Step) -> None:
        """Write the latents of all tokens to their pages. x: [T, hidden]"""
        sizes = self.sizes
        compressed = self.down(x)
        latent = self.kernels.rms_norm(compressed[:, : sizes.rank], self.norm, sizes.norm_eps)
        own = self._rotated(compressed.view(x.shape[0], 1, -1), step.positions)
        entry, pool = self.kernels.concat(latent, own[:, 0]), step.pages.latents[self.index]
        self.kernels.latent_write(entry, pool, step.token_pages, step.token_offsets)
        step.kv_written(self.index)

    def _queries(self, x: Tensor) -> Tensor:
        """Compute the queries. x: [T, hidden] -> [T, heads, plain + rotated]"""
        if self.q_down is not None:
            x = self.kernels.rms_norm(self.q_down(x), self.q_norm, self.sizes.norm_eps)
        return self.q_up(x).view(x.shape[0], -1, self.sizes.plain + self.sizes.rotated)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate the tails of heads by their positions. x: [T, heads, any + rotated] -> [T, heads,
        rotated]
        """
        rotated = self.sizes.rotated
        if self.rope is None:
            return x[..., x.shape[2] - rotated :]
        return self.kernels.apply_partial_rope(
            x, rotated, self.rope, positions, self.sizes.interleaved
        )

    def _decode(self, plain: Tensor, turned: Tensor, pool: Tensor, rows: DecodeRows) -> Tensor:
        """Attend to the latents of decode rows. plain: [D, heads, plain], turned: [D, heads,
        rotated] -> [D, heads, value]
        """
        query = self.kernels.mla_query(plain, turned, self.up)
        mean = self.kernels.mla_decode(
            query[:, None],
            pool,
            rows.block_tables,
            rows.table_rows,
            rows.kv_lens,
            rows.kv_lens_host,
            self.sizes.rank,
            self.sizes.scale,
            first_key=self.first_key,
            nodes=rows.nodes,
        )
        return self.kernels.from_latent(mean[:, 0], self.up, self.sizes.plain)
