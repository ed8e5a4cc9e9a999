"""Granite 3, dense: Llama with multipliers of embedding, residuals, scores and logits."""

from functools import partial

from baton.engine.models.decoder import Decoder
from baton.engine.models.families import llama
from baton.engine.models.family import Family
from baton.engine.models.fields import Fields
from baton.engine.models.scope import Scope
from baton.engine.settings.config import ModelConfig


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    fields = Fields(config.raw, "config.json")
    return llama.build(
        config,
        scope,
        scale=fields.number("attention_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
    )


FAMILY = Family(
    "granite", "GraniteForCausalLM", partial(llama.read, "granite"), _build, "attention; MLP"
)
