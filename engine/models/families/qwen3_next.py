"""Qwen3-Next: gated delta nets, and gated attention with partly rotated heads in every fourth
layer; then experts with a gated one for every token beside them, or an MLP."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from baton.engine.models.decoder import Decoder
from baton.engine.models.family import (
    REQUIRED,
    DTypes,
    Family,
    MtpTensors,
    decoder,
    layer_mixers,
    model_config,
    placed,
    residual,
)
from baton.engine.models.fields import Fields
from baton.engine.models.layers.attention import Attention, AttentionSizes
from baton.engine.models.layers.base import Layer
from baton.engine.models.layers.gated_delta import DeltaShape, GatedDeltaNet
from baton.engine.models.layers.hidden_shift import HiddenShift
from baton.engine.models.layers.linear import WholeLinear
from baton.engine.models.layers.mlp import GatedMlp, PartMlp
from baton.engine.models.layers.moe import GroupedTopK, RoutedSwiglu, SoftmaxRouter
from baton.engine.models.layers.mtp_attention import MtpAttention
from baton.engine.models.layers.norm import Norm
from baton.engine.models.layers.rope import read_rope
from baton.engine.models.mtp_layer import MtpLayer
from baton.engine.models.scope import Scope
from baton.engine.settings.choices import MtpRecycle
from baton.engine.settings.config import Mixer, ModelConfig
from baton.kernels.gated_delta import CHUNK

_MIXERS = {"linear_attention": Mixer.GATED_DELTA_NET, "full_attention": Mixer.ATTENTION}
_DELTA = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
)
_HEAD_DIM = 256  # where the config names none
_ROTATED = 0.25  # part of each head


def _sizes(fields: Fields) -> tuple[DeltaShape, AttentionSizes]:
    hidden, eps = fields.integer("hidden_size"), _eps(fields)
    attention = AttentionSizes.read(fields, hidden, head_dim=_HEAD_DIM)
    attention = replace(attention, norm_eps=eps, zero_centred=True, gated=True)
    return DeltaShape.read(fields, hidden, eps), attention


def _eps(fields: Fields) -> float:
    return fields.number("rms_norm_eps", 1e-6)


def _layer_types(fields: Fields) -> tuple[str, ...]:
    """Read the layers' types, by name, or by how often a layer is attention."""
    if fields.has("layer_types"):
        return fields.texts("layer_types")
    every = fields.integer("full_attention_interval", 4)
    layers = range(1, fields.integer("num_hidden_layers") + 1)
    return tuple("linear_attention" if layer % every else "full_attention" for layer in layers)


def read(family: str, fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    """Read the configuration of a model of gated delta nets and gated attention."""
    fields.require(*REQUIRED, *_DELTA)
    fields.only("hidden_act", "silu", "feed-forwards and convolutions are built on it")
    delta, attention = _sizes(fields)
    layers = layer_mixers(fields, _layer_types(fields), _MIXERS)
    return model_config(family, fields, folder, dtypes, layers, delta.state, attention.cache, CHUNK)


def build(config: ModelConfig, scope: Scope, model: str, interleaved: bool) -> Decoder:
    """Build a decoder of gated delta nets and gated attention.

    model: the prefix of the tensors' names. interleaved: see GatedDeltaNet.
    """
    fields = Fields(config.raw, "config.json")
    hidden, eps = config.hidden_size, _eps(fields)
    delta, attention = _sizes(fields)
    rotated = fields.section("rope_parameters").number(
        "partial_rotary_factor", fields.number("partial_rotary_factor", _ROTATED)
    )
    rope = scope.own(read_rope(fields, attention.head_dim, config.max_model_len, rotated))
    blocks = []
    for index, mixer, place in placed(config):
        layer = scope.at(f"{model}.layers.{index}")
        mix: Layer
        if mixer is Mixer.GATED_DELTA_NET:
            mix = GatedDeltaNet(layer.at("linear_attn"), delta, place, interleaved)
        else:
            mix = Attention(layer.at("self_attn"), attention, place, rope)
        forward = _feed_forward(fields, layer.at("mlp"), _is_plain(fields, index))
        for norm, branches in (
            ("input_layernorm", (mix,)),
            ("post_attention_layernorm", forward),
        ):
            blocks.append(residual(layer, norm, hidden, eps, *branches, zero_centred=True))
    mtp = _mtp(config, scope, rope) if config.mtp else None
    embedding, norm = f"{model}.embed_tokens", f"{model}.norm"
    return decoder(config, scope, blocks, eps, embedding, norm, zero_centred=True, mtp=mtp)


def _mtp(config: ModelConfig, scope: Scope, rope: Tensor) -> MtpLayer:
    """Build the layer of multi-token prediction: the model's own attention layer, with its norms
    around it."""
    fields = Fields(config.raw, "config.json")
    fields.only("mtp_use_dedicated_embeddings", False, "the MTP layer shares the model's")
    hidden, eps = config.hidden_size, _eps(fields)
    _, attention = _sizes(fields)
    norm = partial(Norm, hidden=hidden, eps=eps, zero_centred=True)
    whole, layer = scope.at("mtp"), scope.at("mtp.layers.0")
    forward = _feed_forward(fields, layer.at("mlp"), plain=False)
    behind = residual(layer, "post_attention_layernorm", hidden, eps, *forward, zero_centred=True)
    return MtpLayer(
        scope.kernels,
        norm(whole, "pre_fc_norm_embedding"),
        norm(whole, "pre_fc_norm_hidden"),
        WholeLinear(whole, "fc", hidden, 2 * hidden),
        HiddenShift(scope, hidden, len(config.recurrent) - 1),
        norm(layer, "input_layernorm"),
        MtpAttention(layer.at("self_attn"), attention, len(config.attention) - 1, rope),
        (behind,),
        norm(whole, "norm"),
        config.mtp_recycle,
    )


def _is_plain(fields: Fields, index: int) -> bool:
    """Return True if layer `index` has an MLP also in a model with experts."""
    plain = index in fields.integers("mlp_only_layers", ())
    return plain or bool((index + 1) % fields.integer("decoder_sparse_step", 1))


def _feed_forward(fields: Fields, scope: Scope, plain: bool) -> tuple[Layer, ...]:
    """Build a layer's MLP, or its experts and the MLP that every token uses beside them."""
    hidden, experts = fields.integer("hidden_size"), fields.integer("num_experts", 0, minimum=0)
    if plain or not experts:
        return (_mlp(scope, hidden, fields.integer("intermediate_size")),)
    choice = GroupedTopK.read(fields, experts, normalised=True)
    routed = RoutedSwiglu(
        scope,
        hidden,
        fields.integer("moe_intermediate_size"),
        SoftmaxRouter(scope.at("gate"), hidden, choice),
    )
    width = fields.integer("shared_expert_intermediate_size")
    shared = _mlp(scope.at("shared_expert"), hidden, width)
    return (routed, PartMlp(scope, hidden, "shared_expert_gate", shared))


def _mlp(scope: Scope, hidden: int, width: int) -> GatedMlp:
    gate_up = {"gate_proj": (width,), "up_proj": (width,)}
    return GatedMlp(scope, hidden, width, gate_up, "down_proj")


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    return read("qwen3_next", fields, folder, dtypes)


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    return build(config, scope, "model", interleaved=True)


# "mtp": a layer that guesses further tokens.
FAMILY = Family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    _read,
    _build,
    "gated delta net, gated attention; MLP, experts",
    ignored=("*.rotary_emb.inv_freq", "mtp.*"),
    # By vLLM's qwen3_next_mtp.py, llama.cpp (pull request 24025) and LightLLM (1402).
    mtp=MtpTensors("num_nextn_predict_layers", default=1, recycle=MtpRecycle.AFTER_NORM),
)
