"""The training forward, with the mathematics and parameter names of granitemoehybrid.

It supports only what training needs: whole sequences from a zero state, of a length that is a
multiple of the chunk. `evaluate.py` and the tests read the result with transformers, whose logits
agree to 1e-4.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, by default of the recall model; `export.py` writes them to config.json."""

    vocabulary: int
    layers: tuple[str, ...] = ("mamba", "attention", "mamba", "attention")
    hidden: int = 128
    mlp: int = 512
    heads: int = 4
    kv_heads: int = 2
    mamba_heads: int = 8
    mamba_head: int = 32
    state: int = 16
    width: int = 4
    chunk: int = 64
    eps: float = 1e-5
    # Not 1, so that a server which forgets one of them answers wrongly.
    embedding_multiplier: float = 4.0
    residual_multiplier: float = 0.5
    attention_multiplier: float = 0.125
    logits_scaling: float = 2.0
    # Training begins with SSM keys (B) that are the queries (C) of this many tokens before: a word
    # then finds in the state what stood so far behind an equal word. None: keys begin at random.
    key_delay: int | None = None

    @property
    def inner(self) -> int:
        return self.mamba_heads * self.mamba_head

    @property
    def conv(self) -> int:
        return self.inner + 2 * self.state


def scan(x: Tensor, dt: Tensor, fade: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """Run Mamba-2's recurrence by chunks from a zero state, in fp32.

    x [B, L, H, P], dt and fade [B, L, H], b and c [B, L, N] -> y [B, L, H, P]. At each token the
    state is multiplied by exp(fade), fade <= 0.
    """
    batch, length, heads, size = x.shape
    chunks = length // chunk
    x = (x * dt[..., None]).view(batch, chunks, chunk, heads, size).transpose(2, 3)
    b, c = (t.view(batch, chunks, chunk, -1) for t in (b, c))
    gone = fade.view(batch, chunks, chunk, heads).cumsum(2).transpose(2, 3)  # B K H Q
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    between = (gone[..., :, None] - gone[..., None, :]).masked_fill(later, -torch.inf).exp()
    y = ((c @ b.mT)[:, :, None] * between) @ x
    # What each chunk adds to the state, then the state at each chunk's start.
    added = (x * (gone[..., -1:] - gone).exp()[..., None]).mT @ b[:, :, None]  # B K H P N
    kept = gone[..., -1].exp()[..., None, None]
    state = torch.zeros_like(added[:, 0])
    starts = []
    for index in range(chunks):
        starts.append(state)
        state = state * kept[:, index] + added[:, index]
    carried = (c[:, :, None] @ torch.stack(starts, 1).mT) * gone.exp()[..., None]
    return (y + carried).transpose(2, 3).reshape(batch, length, heads, size)


class Mamba(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        heads = shape.mamba_heads
        self.in_proj = nn.Linear(shape.hidden, shape.inner + shape.conv + heads, bias=False)
        self.conv1d = nn.Conv1d(shape.conv, shape.conv, shape.width, groups=shape.conv)
        # Each quarter of x's channels starts as a delay of 0 to 3 tokens. The words just before are
        # then available from the first step, and lookups form sooner.
        delays = torch.eye(shape.width).repeat(shape.inner // shape.width, 1)
        with torch.no_grad():
            self.conv1d.weight[: shape.inner, 0].mul_(0.2).add_(delays)
        # Ranges from heads that sum over the whole prompt to heads that forget within a sentence.
        self.A_log = nn.Parameter(torch.linspace(-9.0, 1.5, heads))
        self.dt_bias = nn.Parameter(torch.full((heads,), -2.0))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(shape.inner, shape.eps)
        self.out_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, hidden: Tensor, forget: float) -> Tensor:
        shape = self.shape
        sizes = (shape.inner, shape.conv, shape.mamba_heads)
        z, xbc, dt = self.in_proj(hidden).split_with_sizes(sizes, -1)
        xbc = F.silu(self.convolve(xbc))
        x, b, c = xbc.split_with_sizes((shape.inner, shape.state, shape.state), -1)
        x = x.reshape(*x.shape[:2], shape.mamba_heads, shape.mamba_head)
        dt = F.softplus(dt + self.dt_bias)
        y = scan(x, dt, -self.A_log.exp() * dt - forget, b, c, shape.chunk)
        y = (y + self.D[:, None] * x).flatten(2)
        mixed: Tensor = self.out_proj(self.norm(y * F.silu(z)))
        return mixed

    @torch.no_grad()
    def match_keys_with_queries(self, delay: int) -> None:
        """Give B the projection of C and a convolution that begins as a delay of `delay` tokens."""
        shape = self.shape
        keys = slice(shape.inner, shape.inner + shape.state)  # channels of the convolution
        queries = slice(keys.stop, keys.stop + shape.state)
        rows = self.in_proj.weight[shape.inner :]  # without those of the gate
        rows[keys] = rows[queries]
        taps = self.conv1d.weight[:, 0]
        taps[shape.inner :] *= 0.2
        taps[keys, -1 - delay] += 1.0
        taps[queries, -1] += 1.0

    def convolve(self, x: Tensor) -> Tensor:
        """Convolve depthwise and causally: x [B, L, C] -> [B, L, C], fp32.

        Sums shifted copies: on a CPU the backward is several times faster than conv1d's.
        """
        length, width = x.shape[1], self.shape.width
        padded = F.pad(x, (0, 0, width - 1, 0))
        taps = self.conv1d.weight[:, 0].unbind(1)
        mixed = x * taps[-1] + cast(Tensor, self.conv1d.bias)
        for tap in range(width - 1):
            mixed = torch.addcmul(mixed, padded[:, tap : tap + length], taps[tap])
        return mixed


class RecallAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.head = shape.hidden // shape.heads
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * self.head, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * self.head, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (p(hidden).unflatten(-1, (-1, self.head)).transpose(1, 2) for p in projections)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        scale = self.shape.attention_multiplier
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        mixed: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return mixed


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_linear = nn.Linear(shape.hidden, 2 * shape.mlp, bias=False)
        self.output_linear = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        gate, up = self.input_linear(hidden).chunk(2, dim=-1)
        mixed: Tensor = self.output_linear(F.silu(gate) * up)
        return mixed


class RecallLayer(nn.Module):
    def __init__(self, shape: Shape, kind: str) -> None:
        super().__init__()
        self.scale = shape.residual_multiplier
        self.is_mamba = kind == "mamba"
        if self.is_mamba:
            self.mamba = Mamba(shape)
        else:
            self.self_attn = RecallAttention(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.shared_mlp = Mlp(shape)

    def forward(self, hidden: Tensor, forget: float) -> Tensor:
        x = self.input_layernorm(hidden)
        mixed = self.mamba(x, forget) if self.is_mamba else self.self_attn(x)
        hidden = hidden + self.scale * mixed
        hidden = hidden + self.scale * self.shared_mlp(self.post_attention_layernorm(hidden))
        return hidden


class RecallBody(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(RecallLayer(shape, kind) for kind in shape.layers)
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)


class Network(nn.Module):
    """The model: token ids [B, L] int64 -> logits [B, L, V] fp32; L is a multiple of the chunk."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = RecallBody(shape)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                spread = 1.0 / shape.embedding_multiplier if "embed" in name else None
                nn.init.normal_(parameter, std=spread or parameter.shape[1] ** -0.5)
        if shape.key_delay is not None:
            for module in self.modules():
                if isinstance(module, Mamba):
                    module.match_keys_with_queries(shape.key_delay)

    def forward(self, ids: Tensor, forget: float = 0.0) -> Tensor:
        """Run the model. `forget` > 0 multiplies all SSM states by exp(-forget) at every token."""
        hidden = self.model.embed_tokens(ids) * self.shape.embedding_multiplier
        for layer in self.model.layers:
            hidden = layer(hidden, forget)
        logits = F.linear(self.model.norm(hidden), self.model.embed_tokens.weight)
        return logits / self.shape.logits_scaling
