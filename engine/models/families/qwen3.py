"""Qwen3, dense: Llama with a norm over each head of queries and keys."""

from pathlib import Path

from baton.engine.models.decoder import Decoder
from baton.engine.models.families import llama
from baton.engine.models.family import DTypes, Family
from baton.engine.models.fields import Fields
from baton.engine.models.scope import Scope
from baton.engine.settings.config import ModelConfig


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    fields.only("use_sliding_window", False, "every layer sees the whole sequence")
    return llama.read("qwen3", fields, folder, dtypes)


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    return llama.build(config, scope, head_norms=True)


FAMILY = Family("qwen3", "Qwen3ForCausalLM", _read, _build, "attention; MLP")
