"""Zamba2: Mamba-2 layers, some of them behind a transformer block that several layers share.

A shared block reads the residual stream beside the embedding, twice the channels, and each use of
it has low-rank adapters of its own. What it makes is added to what that layer's mixer reads, not to
the residual stream. As in Nemotron-H, dt is clamped by `time_step_limit` alone.

A checkpoint may hold a shared block once more for each layer that uses it. As in transformers, each
tensor of other values than the block's is used where it is held.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.loading.copied import CopiedWeights
from baton.engine.models.decoder import Block, Decoder
from baton.engine.models.family import (
    REQUIRED,
    DTypes,
    Family,
    decoder,
    log_difference,
    model_config,
    residual,
)
from baton.engine.models.fields import Fields
from baton.engine.models.layers.attention import Attention, AttentionSizes
from baton.engine.models.layers.linear import Adapted, WholeLinear
from baton.engine.models.layers.mamba2 import Mamba2Fields, Mamba2Mixer, Mamba2Shape
from baton.engine.models.layers.mlp import GatedMlp, channels
from baton.engine.models.layers.norm import Norm
from baton.engine.models.layers.rope import read_rope
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step
from baton.engine.settings.config import Mixer, ModelConfig
from baton.kernels.base import Kernels

_NAMES = Mamba2Fields(
    heads="n_mamba_heads",
    head_dim="mamba_headdim",
    groups="mamba_ngroups",
    chunk_size="chunk_size",
    conv_bias="use_conv_bias",
    proj_bias="add_bias_linear",
)
_KINDS: dict[str, tuple[Mixer, ...]] = {
    "mamba": (Mixer.MAMBA2,),
    "linear_attention": (Mixer.MAMBA2,),
    "hybrid": (Mixer.ATTENTION, Mixer.MAMBA2),
}
_GATED_NORM_EPS = 1e-5  # of the mixers, whatever the model's own


@dataclass(frozen=True)
class SharedBlock:
    """linear(mlp(norm(attention(norm([x | embedded]))))), without residuals."""

    kernels: Kernels
    norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: GatedMlp
    linear: WholeLinear

    def __call__(self, x: Tensor, embedded: Tensor, step: Step) -> Tensor:
        """Run the block.

        x, embedded: [T, hidden] -> [T, hidden]
        """
        attended = self.attention(self.norm(self.kernels.concat(x, embedded)), step)
        return self.linear(self.mlp(self.mlp_norm(attended), step))


@dataclass(frozen=True)
class Hybrid:
    """x + mamba(norm(x + shared(x)))."""

    mixes = True

    kernels: Kernels
    shared: SharedBlock
    norm: Norm
    mamba: Mamba2Mixer

    def __call__(self, x: Tensor, embedded: Tensor, step: Step) -> Tensor:
        made = self.shared(x, embedded, step)
        mixed = self.mamba(self.norm(self.kernels.add_scaled(x, made, 1.0)), step)
        return self.kernels.add_scaled(x, mixed, 1.0)


def _kinds(fields: Fields) -> tuple[str, ...]:
    kinds = fields.texts("layers_block_type")
    unknown = sorted(set(kinds) - set(_KINDS))
    if unknown or len(kinds) != fields.integer("num_hidden_layers"):
        raise ConfigError(
            f"{fields.where}: layers_block_type should name num_hidden_layers layers, each "
            f"one of {', '.join(_KINDS)}; got {kinds}"
        )
    return kinds


def _mamba(fields: Fields) -> Mamba2Shape:
    return Mamba2Shape.read(fields, fields.integer("hidden_size"), _GATED_NORM_EPS, _NAMES)


def _attention(fields: Fields) -> AttentionSizes:
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("attention_head_dim", 2 * hidden // heads)
    return AttentionSizes(
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        scale=(head_dim / 2) ** -0.5,
        bias=False,
        input=2 * hidden,
    )


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    needed = ("intermediate_size", "layers_block_type", "n_mamba_heads", "mamba_d_state")
    fields.require(*REQUIRED, *needed)
    fields.only("hidden_act", "gelu", "the shared feed-forward is built on it")
    fields.only("use_long_context", False, "rotary positions are not stretched")
    mamba = _mamba(fields)
    layers = tuple(_KINDS[kind] for kind in _kinds(fields))
    cache = _attention(fields).cache
    return model_config(
        "zamba2", fields, folder, dtypes, layers, mamba.state, cache, mamba.chunk_size
    )


# The tensors of each part of a block, but for adapters; some models have no biases.
_NORM = ("input_layernorm.weight",)
_ATTENTION = tuple(f"self_attn.{name}_proj.weight" for name in "qkvo")
_MLP_NORM = ("pre_ff_layernorm.weight",)
_MLP = tuple(
    f"feed_forward.{name}.{kind}"
    for name in ("gate_up_proj", "down_proj")
    for kind in ("weight", "bias")
)


def _adapters(number: int) -> Iterator[str]:
    """Return the names of the adapters of one use of a block; some models lack those of q, k and
    v.
    """
    for name in (*(f"self_attn.linear_{n}" for n in "qkv"), "feed_forward.gate_up_proj"):
        yield from (f"{name}_adapter_list.{number}.{half}.weight" for half in (0, 1))


class _SharedBlocks:
    """The blocks' weights, each loaded once; `use` makes what one layer runs."""

    def __init__(
        self,
        config: ModelConfig,
        fields: Fields,
        scope: Scope,
        places: list[int],
        rope: Tensor | None,
    ):
        """places: layers that have a shared block; the first of each block hold its weights."""
        self._config = config
        self._sizes, self._rope = _attention(fields), rope
        self._rank = fields.integer("adapter_rank", 128)
        self._adapted_attention = fields.flag("use_shared_attention_adapter", False)
        self._width = fields.integer("intermediate_size")
        self._bias = fields.flag("add_bias_linear", False)
        self._eps = fields.number("rms_norm_eps", 1e-5)
        # transformers shares them only where it shares the embedding too, as all published ones do.
        shared = fields.flag("tie_word_embeddings", True)
        count = min(fields.integer("num_mem_blocks", 1), len(places)) if shared else len(places)
        self._scopes = [scope.at(f"model.layers.{layer}.shared_transformer") for layer in places]
        self._blocks = [
            (self._norm(each), self._attention(each), self._mlp_norm(each), self._mlp(each))
            for each in self._scopes[:count]
        ]

    def _norm(self, scope: Scope) -> Norm:
        return Norm(scope, "input_layernorm", 2 * self._sizes.hidden, self._eps)

    def _attention(self, scope: Scope) -> Attention:
        return Attention(scope.at("self_attn"), self._sizes, 0, self._rope)

    def _mlp_norm(self, scope: Scope) -> Norm:
        return Norm(scope, "pre_ff_layernorm", self._sizes.hidden, self._eps)

    def _mlp(self, scope: Scope) -> GatedMlp:
        return GatedMlp(
            scope.at("feed_forward"),
            self._sizes.hidden,
            self._width,
            {"gate_up_proj": (self._width, self._width)},
            "down_proj",
            self._bias,
            gelu=True,
        )

    def _parts(self, number: int) -> tuple[Scope, tuple[Norm, Attention, Norm, GatedMlp]]:
        """Return where the tensors of one use are, and the parts of its block: those that it
        shares, and its own where a tensor that it holds has other values.
        """
        place = number % len(self._blocks)
        scope, original, parts = self._scopes[number], self._scopes[place], self._blocks[place]
        if number == place:
            return scope, parts
        copied = CopiedWeights(scope.source, copy=scope.prefix, original=original.prefix)
        scope = replace(scope, source=copied)

        def own(names: Iterable[str]) -> bool:
            return any(copied.of(scope.prefix + name) == scope.prefix + name for name in names)

        norm, attention, mlp_norm, mlp = parts
        if own(_NORM):
            norm = self._norm(scope)
        if own(_ATTENTION):
            attention = self._attention(scope)
        if own(_MLP_NORM):
            mlp_norm = self._mlp_norm(scope)
        if own(_MLP):
            mlp = self._mlp(scope)
        if own((*_NORM, *_ATTENTION, *_MLP_NORM, *_MLP, *_adapters(number))):
            log_difference(self._config, scope, f"{scope.prefix}*", f"{original.prefix}*")
        return scope, (norm, attention, mlp_norm, mlp)

    def use(self, layer: Scope, number: int) -> SharedBlock:
        """Build what one layer runs.

        number: which use of a shared block this is; uses take the blocks in turn.
        """
        scope, (norm, attention, mlp_norm, mlp) = self._parts(number)
        sizes, width = self._sizes, self._width
        qkv = attention.qkv
        if self._adapted_attention:
            kv = sizes.kv_block
            rows = {"q": (sizes.query_block,), "k": (kv,), "v": (kv,)}
            adapters = {f"linear_{n}_adapter_list.{number}": rows[n] for n in rows}
            qkv = Adapted(scope.at("self_attn"), qkv, adapters, 2 * sizes.hidden, self._rank)
        gate_up = Adapted(
            scope.at("feed_forward"),
            mlp.gate_up,
            {f"gate_up_proj_adapter_list.{number}": (channels(width), channels(width))},
            sizes.hidden,
            self._rank,
        )
        return SharedBlock(
            scope.kernels,
            norm,
            attention.reused(number, qkv),
            mlp_norm,
            mlp.reused(gate_up),
            WholeLinear(layer, "linear", sizes.hidden, sizes.hidden),
        )


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    fields = Fields(config.raw, "config.json")
    mamba, hidden, eps = _mamba(fields), config.hidden_size, fields.number("rms_norm_eps", 1e-5)
    kinds = _kinds(fields)
    rope = None
    if fields.flag("use_mem_rope", False):
        head_dim = _attention(fields).head_dim
        rope = scope.own(read_rope(fields, head_dim, config.max_model_len))
    places = [index for index, kind in enumerate(kinds) if kind == "hybrid"]
    shared = _SharedBlocks(config, fields, scope, places, rope)
    blocks: list[Block] = []
    for index, kind in enumerate(kinds):
        layer = scope.at(f"model.layers.{index}")
        if kind == "hybrid":
            inner = layer.at("mamba_decoder")
            mixer = Mamba2Mixer(inner.at("mamba"), mamba, index)
            norm = Norm(inner, "input_layernorm", hidden, eps)
            block = shared.use(layer, places.index(index))
            blocks.append(Hybrid(scope.kernels, block, norm, mixer))
        else:
            mixer = Mamba2Mixer(layer.at("mamba"), mamba, index)
            blocks.append(residual(layer, "input_layernorm", hidden, eps, mixer))
    return decoder(config, scope, blocks, eps, norm="model.final_layernorm", tied=True)


# Copies of a shared block that are equal to it are not used.
FAMILY = Family(
    "zamba2",
    "Zamba2ForCausalLM",
    _read,
    _build,
    "Mamba-2; attention and MLP that layers share",
    ignored=("*.rotary_emb.inv_freq", "model.layers.*.shared_transformer.*"),
)
