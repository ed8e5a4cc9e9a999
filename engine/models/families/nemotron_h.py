"""Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention, a feed-forward or experts.

Attention uses no positions. `time_step_min` is what dt began training with: dt is clamped by
`time_step_limit` alone, at prefill and at decode, where transformers clamps by `time_step_min` at
prefill and by nothing at decode.
"""

from pathlib import Path

from baton.core.errors import ConfigError
from baton.engine.models.decoder import Decoder
from baton.engine.models.family import (
    DTypes,
    Family,
    decoder,
    model_config,
    placed,
    residual,
)
from baton.engine.models.fields import Fields
from baton.engine.models.layers.attention import Attention, AttentionSizes
from baton.engine.models.layers.base import Layer
from baton.engine.models.layers.mamba2 import Mamba2Fields, Mamba2Mixer, Mamba2Shape
from baton.engine.models.layers.mlp import Relu2Mlp
from baton.engine.models.layers.moe import GroupedTopK, RoutedRelu2
from baton.engine.models.scope import Scope
from baton.engine.settings.config import Mixer, ModelConfig

_NAMES = Mamba2Fields(
    heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    groups="n_groups",
    d_state="ssm_state_size",
    width="conv_kernel",
    chunk_size="chunk_size",
    conv_bias="use_conv_bias",
    proj_bias="use_bias",
    expand=None,
)
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_MIXERS: dict[str, tuple[Mixer, ...]] = {
    "mamba": (Mixer.MAMBA2,),
    "attention": (Mixer.ATTENTION,),
    "mlp": (),
    "moe": (),
}
_NEWER = {"linear_attention": "mamba", "full_attention": "attention"}
_HEAD_DIM = 128  # of every Nemotron-H; older config.json files call it otherwise


def _kinds(fields: Fields) -> tuple[str, ...]:
    """Read what each layer is: a pattern of letters, or a list of names (transformers 5)."""
    if fields.has("layers_block_type"):
        kinds = tuple(_NEWER.get(name, name) for name in fields.texts("layers_block_type"))
    else:
        pattern = fields.text("hybrid_override_pattern")
        kinds = tuple(_LETTERS.get(letter, letter) for letter in pattern)
    unknown = sorted(set(kinds) - set(_MIXERS))
    if unknown or not kinds:
        raise ConfigError(
            f"{fields.where}: unknown layer types {', '.join(unknown) or '(none given)'}; known "
            f"are {', '.join(_LETTERS)} of hybrid_override_pattern, and {', '.join(_MIXERS)}"
        )
    return kinds


def _mamba(fields: Fields) -> Mamba2Shape:
    eps = fields.number("layer_norm_epsilon", 1e-5)
    return Mamba2Shape.read(fields, fields.integer("hidden_size"), eps, _NAMES)


def _attention(fields: Fields) -> AttentionSizes:
    hidden = fields.integer("hidden_size")
    return AttentionSizes.read(fields, hidden, head_dim=_HEAD_DIM)


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    fields.require(
        "hidden_size",
        "vocab_size",
        "num_attention_heads",
        "max_position_embeddings",
        "mamba_num_heads",
        "mamba_head_dim",
        "ssm_state_size",
    )
    fields.only("mlp_hidden_act", "relu2", "the feed-forward is built on it")
    fields.only("mamba_hidden_act", "silu", "the convolution is built on it")
    fields.only("attention_bias", False, "attention has no biases")
    layers = tuple(_MIXERS[kind] for kind in _kinds(fields))
    mamba = _mamba(fields)
    cache = _attention(fields).cache
    return model_config(
        "nemotron_h", fields, folder, dtypes, layers, mamba.state, cache, mamba.chunk_size
    )


def _experts(fields: Fields, scope: Scope, hidden: int) -> tuple[Layer, ...]:
    """Build the routed experts, and the shared expert, which every token uses."""
    bias = fields.flag("mlp_bias", False)
    choice = GroupedTopK.read(fields, fields.integer("n_routed_experts"), normalised=True)
    latent = fields.integer("moe_latent_size") if fields.has("moe_latent_size") else None
    width = fields.integer("moe_intermediate_size")
    shared = fields.integer("moe_shared_expert_intermediate_size")
    return (
        RoutedRelu2(scope, hidden, width, choice, latent, bias),
        Relu2Mlp(scope.at("shared_experts"), hidden, shared, bias),
    )


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    fields = Fields(config.raw, "config.json")
    mamba, attention = _mamba(fields), _attention(fields)
    hidden, eps = config.hidden_size, mamba.norm_eps
    places = {layer: place for layer, _, place in placed(config)}
    blocks = []
    for index, kind in enumerate(_kinds(fields)):
        layer = scope.at(f"backbone.layers.{index}")
        mixer = layer.at("mixer")
        branches: tuple[Layer, ...]
        if kind == "mamba":
            branches = (Mamba2Mixer(mixer, mamba, places[index]),)
        elif kind == "attention":
            branches = (Attention(mixer, attention, places[index], None),)
        elif kind == "mlp":
            width = fields.integer("intermediate_size")
            branches = (Relu2Mlp(mixer, hidden, width, fields.flag("mlp_bias", False)),)
        else:
            branches = _experts(fields, mixer, hidden)
        blocks.append(residual(layer, "norm", hidden, eps, *branches))
    return decoder(config, scope, blocks, eps, "backbone.embeddings", "backbone.norm_f")


# "mtp": layers that guess further tokens, which nothing here asks for.
FAMILY = Family(
    "nemotron_h",
    "NemotronHForCausalLM",
    _read,
    _build,
    "Mamba-2, attention, MLP, experts",
    ignored=("*.rotary_emb.inv_freq", "mtp.*"),
)
