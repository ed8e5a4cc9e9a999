"""Kimi Linear: Kimi Delta Attention, and latent attention without positions in every fourth layer;
then a gated MLP in the first layers and DeepSeek-V3's experts in the others."""

from pathlib import Path

from baton.engine.models.decoder import Decoder
from baton.engine.models.family import (
    REQUIRED,
    DTypes,
    Family,
    decoder,
    layer_mixers,
    model_config,
    placed,
    residual,
)
from baton.engine.models.fields import Fields
from baton.engine.models.layers.base import Layer
from baton.engine.models.layers.gated_delta import DeltaShape
from baton.engine.models.layers.kda import KimiDelta
from baton.engine.models.layers.mla import Mla, MlaSizes
from baton.engine.models.layers.mlp import GatedMlp
from baton.engine.models.layers.moe import ExpertNames, GroupedRouter, GroupedTopK, RoutedSwiglu
from baton.engine.models.scope import Scope
from baton.engine.settings.config import Mixer, ModelConfig
from baton.kernels.gated_delta import CHUNK

_MIXERS = {"linear_attention": Mixer.KDA, "full_attention": Mixer.MLA}
# These fields by other families' names; transformers 5 writes some by its own.
_COMMON = {
    "model_max_length": "max_position_embeddings",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "num_expert_group": "n_group",
    "moe_renormalize": "norm_topk_prob",
}
_LINEAR = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = ExpertNames(gate="w1", up="w3", down="w2")


def _common(fields: Fields) -> Fields:
    """Return the fields by the names that are read below."""
    raw = {_COMMON.get(name, name): value for name, value in fields.raw.items()}
    linear = fields.section("linear_attn_config")
    raw |= {_LINEAR[name]: value for name, value in linear.raw.items() if name in _LINEAR}
    return Fields(raw, fields.where)


def _layer_types(fields: Fields) -> tuple[str, ...]:
    """Read the layers' types, by name, or by the places (from one) of those with latent
    attention.
    """
    if fields.has("layer_types"):
        return fields.texts("layer_types")
    full = fields.section("linear_attn_config").integers("full_attn_layers")
    layers = range(1, fields.integer("num_hidden_layers") + 1)
    return tuple("full_attention" if layer in full else "linear_attention" for layer in layers)


def _has_experts(fields: Fields, index: int) -> bool:
    if fields.has("mlp_layer_types"):
        return fields.texts("mlp_layer_types")[index] == "sparse"
    return index >= fields.integer("first_k_dense_replace", 1, minimum=0)


def _delta(fields: Fields) -> DeltaShape:
    heads, channels = fields.integer("linear_num_heads"), fields.integer("linear_head_dim")
    return DeltaShape(
        hidden=fields.integer("hidden_size"),
        key_heads=heads,
        heads=heads,
        key_dim=channels,
        value_dim=channels,
        width=fields.integer("linear_conv_kernel_dim", 4, minimum=2),
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        channelwise=True,
    )


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    fields = _common(fields)
    fields.require(*REQUIRED, *_LATENT, "linear_head_dim", "linear_num_heads")
    fields.only("hidden_act", "silu", "feed-forwards and convolutions are built on it")
    fields.only("mla_use_nope", True, "attention uses no positions")
    fields.only("moe_router_activation_func", "sigmoid", "the router is built on it")
    fields.only("moe_layer_freq", 1, "every layer past first_k_dense_replace has experts")
    latent = MlaSizes.read(fields, fields.integer("hidden_size"))
    layers = layer_mixers(fields, _layer_types(fields), _MIXERS)
    state = _delta(fields).state
    return model_config("kimi_linear", fields, folder, dtypes, layers, state, latent.cache, CHUNK)


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    fields = Fields(config.raw, "config.json")
    delta, latent = _delta(fields), MlaSizes.read(fields, config.hidden_size)
    hidden, eps = config.hidden_size, delta.norm_eps
    blocks = []
    for index, mixer, place in placed(config):
        layer = scope.at(f"model.layers.{index}")
        attention = layer.at("self_attn")
        mix: Layer
        if mixer is Mixer.KDA:
            mix = KimiDelta(attention, delta, place)
        else:
            mix = Mla(attention, latent, place, rope=None)
        if _has_experts(fields, index):
            forward = _experts(fields, layer.at("block_sparse_moe"), hidden)
        else:
            # As published; transformers 5 saves an MLP by the name of the experts.
            renamed = layer.holds("block_sparse_moe.gate_proj.weight")
            mlp = layer.at("block_sparse_moe" if renamed else "mlp")
            forward = (_mlp(mlp, hidden, fields.integer("intermediate_size")),)
        blocks.append(residual(layer, "input_layernorm", hidden, eps, mix))
        blocks.append(residual(layer, "post_attention_layernorm", hidden, eps, *forward))
    return decoder(config, scope, blocks, eps)


def _mlp(scope: Scope, hidden: int, width: int) -> GatedMlp:
    gate_up = {"gate_proj": (width,), "up_proj": (width,)}
    return GatedMlp(scope, hidden, width, gate_up, "down_proj")


def _experts(fields: Fields, scope: Scope, hidden: int) -> tuple[Layer, ...]:
    """Build the routed experts, and the shared ones, which every token uses, as one MLP."""
    width = fields.integer("moe_intermediate_size")
    choice = GroupedTopK.read(fields, fields.integer("num_experts"), normalised=True)
    router = GroupedRouter(scope.at("gate"), hidden, choice)
    routed = RoutedSwiglu(scope, hidden, width, router, _EXPERTS)
    shared = fields.integer("n_shared_experts", 1, minimum=0)
    if not shared:
        return (routed,)
    return (routed, _mlp(scope.at("shared_experts"), hidden, shared * width))


FAMILY = Family(
    "kimi_linear",
    "KimiLinearForCausalLM",
    _read,
    _build,
    "Kimi delta attention, latent attention; MLP, experts",
    ignored=("*.rotary_emb.inv_freq", "model.layers.{}.*"),
)
