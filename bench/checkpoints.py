"""Random checkpoints, written as Hugging Face folders without transformers.

The tensors are those that our own loader asks for, so every family that it reads can be written.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from baton.engine.assembly.loader import declared_weights
from baton.engine.loading.weights import INDEX_FILE, SINGLE_FILE, DummyWeights, WeightSource
from baton.engine.models.family_table import read_config

_SPECIAL = ("<pad>", "<bos>", "<eos>")  # ids 0, 1, 2
_CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

# The model that benchmarks name "small Granite": 6.2 M parameters, six Mamba-2 layers and two of
# attention, so that a step costs milliseconds on one core.
GRANITE_SMALL: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "attention_multiplier": 32**-0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "layer_types": ["mamba", "mamba", "mamba", "attention"] * 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 64,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 16,
    "mamba_proj_bias": False,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_experts_per_tok": 0,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "num_local_experts": 0,
    "pad_token_id": 0,
    "position_embedding_type": "nope",
    "rms_norm_eps": 1e-6,
    "shared_intermediate_size": 512,
    "tie_word_embeddings": True,
    "vocab_size": 512,
}

# The model that benchmarks name "191M hybrid": 20 Mamba-2 layers and four of attention, large
# enough that a decode step is bound by memory.
HYBRID_191M: dict[str, Any] = {
    **GRANITE_SMALL,
    "attention_multiplier": 1 / 64,
    "embedding_multiplier": 12,
    "hidden_size": 768,
    "intermediate_size": 1536,
    "layer_types": (["mamba"] * 5 + ["attention"]) * 4,
    "logits_scaling": 3,
    "mamba_chunk_size": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_heads": 24,
    "max_position_embeddings": 8192,
    "num_attention_heads": 12,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "residual_multiplier": 0.22,
    "shared_intermediate_size": 1536,
    "vocab_size": 32000,
}


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    shard_bytes: int | None = None,
    source: WeightSource | None = None,
    mtp: bool = False,
) -> Path:
    """Write config.json, tensors and a tokenizer to a new `folder`, and return it.

    shard_bytes: start another file once one holds this many; None: write one file. source: gives
    the tensors; None: DummyWeights(seed). mtp: write the layer of multi-token prediction too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = {**config, "dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
    shapes = declared_weights(read_config(folder, dtype, torch.float32, mtp=mtp)).shapes
    weights = source or DummyWeights(seed)
    shards: list[dict[str, torch.Tensor]] = [{}]
    held = 0
    for name, shape in shapes.items():
        tensor = weights.tensor(name, shape).to(dtype)
        if shards[-1] and shard_bytes is not None and held + tensor.nbytes > shard_bytes:
            shards.append({})
            held = 0
        shards[-1][name] = tensor
        held += tensor.nbytes
    _save(folder, shards)
    write_tokenizer(folder, int(config["vocab_size"]))
    return folder


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level BPE without merges: one token a byte; the other tokens are filler."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*_SPECIAL, *alphabet]
    words += [f"<extra_{ident}>" for ident in range(len(words), vocab_size)]
    if len(words) > vocab_size:
        raise ValueError(f"a byte-level vocabulary needs {len(words)} tokens; got {vocab_size}")
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    pad, bos, eos = _SPECIAL
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "bos_token": bos,
        "eos_token": eos,
        "chat_template": _CHAT_TEMPLATE,
    }
    text = json.dumps(fields, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _save(folder: Path, shards: list[dict[str, torch.Tensor]]) -> None:
    metadata = {"format": "pt"}
    if len(shards) == 1:
        save_file(shards[0], folder / SINGLE_FILE, metadata=metadata)
        return
    places = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata=metadata)
        places.update(dict.fromkeys(shard, file))
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
