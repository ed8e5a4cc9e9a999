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
    MtpTensors,
    decoder,
    model_config,
    placed,
    residual,
)
from baton.engine.models.fields import Fields
from baton.engine.models.layers.attention import Attention, AttentionSizes
from baton.engine.models.layers.base import Layer
from baton.engine.models.layers.hidden_shift import HiddenShift
from baton.engine.models.layers.linear import WholeLinear
from baton.engine.models.layers.mamba2 import Mamba2Fields, Mamba2Mixer, Mamba2Shape
from baton.engine.models.layers.mlp import Relu2Mlp
from baton.engine.models.layers.moe import GroupedTopK, RoutedRelu2
from baton.engine.models.layers.mtp_attention import MtpAttention
from baton.engine.models.layers.norm import Norm
from baton.engine.models.mtp_layer import MtpLayer
from baton.engine.models.scope import Scope
from baton.engine.settings.choices import MtpRecycle
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


def _kinds(fields: Fields, prefix: str = "") -> tuple[str, ...]:
    """Read what each layer is: a pattern of letters, or a list of names (transformers 5).

    prefix: of the names of these fields; "mtp_": for the layer of multi-token prediction.
    """
    named, letters = f"{prefix}layers_block_type", f"{prefix}hybrid_override_pattern"
    if fields.has(named):
        kinds = tuple(_NEWER.get(name, name) for name in fields.texts(named))
    else:
        kinds = tuple(_LETTERS.get(letter, letter) for letter in fields.text(letters))
    unknown = sorted(set(kinds) - set(_MIXERS))
    if unknown or not kinds:
        raise ConfigError(
            f"{fields.where}: unknown layer types {', '.join(unknown) or '(none given)'}; known "
            f"are {', '.join(_LETTERS)} of {letters}, and {', '.join(_MIXERS)}"
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
        else:
            branches = _feed_forward(fields, mixer, hidden, kind)
        blocks.append(residual(layer, "norm", hidden, eps, *branches))
    mtp = _mtp(config, scope, eps) if config.mtp else None
    return decoder(config, scope, blocks, eps, "backbone.embeddings", "backbone.norm_f", mtp=mtp)


def _feed_forward(fields: Fields, mixer: Scope, hidden: int, kind: str) -> tuple[Layer, ...]:
    """Build a layer without a mixer: an MLP, or experts."""
    if kind == "moe":
        return _experts(fields, mixer, hidden)
    width = fields.integer("intermediate_size")
    return (Relu2Mlp(mixer, hidden, width, fields.flag("mlp_bias", False)),)


def _mtp(config: ModelConfig, scope: Scope, eps: float) -> MtpLayer:
    """Build the layer of multi-token prediction: attention and what follows it, one index each."""
    fields, hidden = Fields(config.raw, "config.json"), config.hidden_size
    kinds = _kinds(fields, "mtp_")
    if kinds[0] != "attention" or not {"mlp", "moe"}.issuperset(kinds[1:]):
        raise ConfigError(
            f"{fields.where}: the MTP layer is {', '.join(kinds)}; expected attention, then "
            f"{_LETTERS['-']} or {_LETTERS['E']}: use speculative_algorithm ngram, or off"
        )
    first, last = scope.at("mtp.layers.0"), scope.at(f"mtp.layers.{len(kinds) - 1}")
    branches = []
    for index, kind in enumerate(kinds[1:], 1):
        layer = scope.at(f"mtp.layers.{index}")
        branch = _feed_forward(fields, layer.at("mixer"), hidden, kind)
        branches.append(residual(layer, "norm", hidden, eps, *branch))
    return MtpLayer(
        scope.kernels,
        Norm(first, "enorm", hidden, eps),
        Norm(first, "hnorm", hidden, eps),
        WholeLinear(first, "eh_proj", hidden, 2 * hidden),
        HiddenShift(scope, hidden, len(config.recurrent) - 1),
        Norm(first, "norm", hidden, eps),
        MtpAttention(first.at("mixer"), _attention(fields), len(config.attention) - 1, None),
        tuple(branches),
        Norm(last, "final_layernorm", hidden, eps),
        config.mtp_recycle,
    )


# "mtp": layers that guess further tokens. Older models have none, and do not say so.
FAMILY = Family(
    "nemotron_h",
    "NemotronHForCausalLM",
    _read,
    _build,
    "Mamba-2, attention, MLP, experts",
    ignored=("*.rotary_emb.inv_freq", "mtp.*"),
    # By vLLM's nemotron_h_mtp.py.
    mtp=MtpTensors("num_nextn_predict_layers", default=0, recycle=MtpRecycle.AFTER_NORM),
)
