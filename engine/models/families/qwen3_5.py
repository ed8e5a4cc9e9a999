"""Qwen3.5, dense and MoE: Qwen3-Next with plainer projections.

Of a checkpoint that sees images too, the language model alone is read: its sizes are those of
`text_config`, and the vision tower's tensors, `model.visual.*`, are ignored.
"""

from pathlib import Path

from baton.engine.models.decoder import Decoder
from baton.engine.models.families import qwen3_next
from baton.engine.models.family import DTypes, Family, MtpTensors
from baton.engine.models.fields import Fields
from baton.engine.models.scope import Scope
from baton.engine.settings.choices import MtpRecycle
from baton.engine.settings.config import ModelConfig

_INSIDE = "model.language_model"  # a model that sees images


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    if fields.has("text_config"):
        text = fields.section("text_config")
        # The whole says whether its head is tied, and may name ends of sequence.
        raw = {**fields.raw, **text.raw}
        if fields.has("tie_word_embeddings"):
            raw["tie_word_embeddings"] = fields.flag("tie_word_embeddings", False)
        fields = Fields(raw, text.where)
    return qwen3_next.read("qwen3_5", fields, folder, dtypes)


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    inside = scope.holds(f"{_INSIDE}.embed_tokens.weight")
    return qwen3_next.build(config, scope, _INSIDE if inside else "model", interleaved=False)


# "mtp": a layer that guesses further tokens.
FAMILY = Family(
    "qwen3_5",
    "Qwen3_5ForCausalLM",
    _read,
    _build,
    "gated delta net, gated attention; MLP, experts",
    ignored=("*.rotary_emb.inv_freq", "mtp.*", "model.visual.*"),
    # As Qwen3-Next's; vLLM's qwen3_5_mtp.py does the same.
    mtp=MtpTensors("mtp_num_hidden_layers", default=1, recycle=MtpRecycle.AFTER_NORM),
    aliases=("qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    more_architectures=(
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ),
)
