"""DeepSeek-V3 and R1: latent attention, then a gated MLP in the first layers and experts in the
others; and what DeepSeek-V2 shares with it."""

from collections.abc import Callable
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
    model_config,
    residual,
)
from baton.engine.models.fields import Fields
from baton.engine.models.layers.base import Layer
from baton.engine.models.layers.hidden_shift import HiddenShift
from baton.engine.models.layers.linear import WholeLinear
from baton.engine.models.layers.mla import Mla, MlaSizes
from baton.engine.models.layers.mlp import GatedMlp
from baton.engine.models.layers.moe import GroupedRouter, GroupedTopK, RoutedSwiglu, Router
from baton.engine.models.layers.mtp_attention import FIRST_KEY
from baton.engine.models.layers.norm import Norm
from baton.engine.models.layers.rope import read_rope, read_score_factor
from baton.engine.models.mtp_layer import MtpLayer
from baton.engine.models.scope import Scope
from baton.engine.settings.choices import MtpRecycle
from baton.engine.settings.config import Mixer, ModelConfig

# A layer's router, from the scope of its gate.
ReadRouter = Callable[[Fields, Scope, int, int], Router]
_NEEDED = ("intermediate_size", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")


def _sizes(fields: Fields) -> MlaSizes:
    return MlaSizes.read(fields, fields.integer("hidden_size"), read_score_factor(fields))


def read(family: str, fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    """Read the configuration of a model whose every layer is latent attention and a feed-
    forward.
    """
    fields.require(*REQUIRED, *_NEEDED, "v_head_dim")
    fields.only("hidden_act", "silu", "the feed-forward is built on it")
    fields.only("moe_layer_freq", 1, "every layer past first_k_dense_replace has experts")
    layers = ((Mixer.MLA,),) * fields.integer("num_hidden_layers")
    return model_config(family, fields, folder, dtypes, layers, attention=_sizes(fields).cache)


def build(config: ModelConfig, scope: Scope, router: ReadRouter) -> Decoder:
    fields = Fields(config.raw, "config.json")
    hidden, eps = config.hidden_size, fields.number("rms_norm_eps", 1e-6)
    sizes = _sizes(fields)
    rope = scope.own(read_rope(fields, sizes.rotated, config.max_model_len))
    dense = fields.integer("first_k_dense_replace", 0, minimum=0)
    blocks = []
    for index in range(len(config.layers)):
        layer = scope.at(f"model.layers.{index}")
        attention = Mla(layer.at("self_attn"), sizes, index, rope)
        mlp = layer.at("mlp")
        if index < dense:
            forward: tuple[Layer, ...] = (_mlp(mlp, hidden, fields.integer("intermediate_size")),)
        else:
            forward = _experts(fields, mlp, hidden, router)
        blocks.append(residual(layer, "input_layernorm", hidden, eps, attention))
        blocks.append(residual(layer, "post_attention_layernorm", hidden, eps, *forward))
    mtp = _mtp(config, scope, rope, router) if config.mtp else None
    return decoder(config, scope, blocks, eps, mtp=mtp)


def _mtp(config: ModelConfig, scope: Scope, rope: Tensor, router: ReadRouter) -> MtpLayer:
    """Build the layer of multi-token prediction, which lies behind the model's last and has experts
    always."""
    fields = Fields(config.raw, "config.json")
    hidden, eps = config.hidden_size, fields.number("rms_norm_eps", 1e-6)
    layer, place = scope.at(f"model.layers.{len(config.layers)}"), len(config.attention) - 1
    experts = _experts(fields, layer.at("mlp"), hidden, router)
    return MtpLayer(
        scope.kernels,
        Norm(layer, "enorm", hidden, eps),
        Norm(layer, "hnorm", hidden, eps),
        WholeLinear(layer, "eh_proj", hidden, 2 * hidden),
        HiddenShift(scope, hidden, len(config.recurrent) - 1),
        Norm(layer, "input_layernorm", hidden, eps),
        Mla(layer.at("self_attn"), _sizes(fields), place, rope, FIRST_KEY),
        (residual(layer, "post_attention_layernorm", hidden, eps, *experts),),
        Norm(layer, "shared_head.norm", hidden, eps),
        config.mtp_recycle,
    )


def _mlp(scope: Scope, hidden: int, width: int) -> GatedMlp:
    gate_up = {"gate_proj": (width,), "up_proj": (width,)}
    return GatedMlp(scope, hidden, width, gate_up, "down_proj")


def _experts(fields: Fields, scope: Scope, hidden: int, router: ReadRouter) -> tuple[Layer, ...]:
    """Build the routed experts, and the shared ones, which every token uses, as one MLP."""
    width = fields.integer("moe_intermediate_size")
    experts = fields.integer("n_routed_experts")
    routed = RoutedSwiglu(scope, hidden, width, router(fields, scope.at("gate"), hidden, experts))
    shared = fields.integer("n_shared_experts", 0, minimum=0)
    if not shared:
        return (routed,)
    return (routed, _mlp(scope.at("shared_experts"), hidden, shared * width))


def _router(fields: Fields, scope: Scope, hidden: int, experts: int) -> Router:
    fields.only("scoring_func", "sigmoid", "the router is built on it")
    fields.only("topk_method", "noaux_tc", "the router is built on it")
    return GroupedRouter(scope, hidden, GroupedTopK.read(fields, experts, normalised=True))


FAMILY = Family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    partial(read, "deepseek_v3"),
    partial(build, router=_router),
    "latent attention; MLP, experts",
    ignored=("*.rotary_emb.inv_freq", "model.layers.{}.*"),
    mtp=MtpTensors(
        "num_nextn_predict_layers",
        default=0,
        # ATOM measured 2.94 tokens a step so, and 2.84 with what is in front of the norm (its pull
        # request 1764). vLLM's deepseek_mtp.py takes that: hence the option `mtp_recycle`.
        recycle=MtpRecycle.AFTER_NORM,
        used=("model.layers.{}.*",),
        # Copies of the model's own.
        ignored=("model.layers.{}.embed_tokens.*", "model.layers.{}.shared_head.head.*"),
    ),
)
