"""Export of a network as a Hugging Face folder: config, weights, tokenizer, chat template."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from recall.language import END, IDS, UNKNOWN
from recall.network import Network, Shape

LONGEST = 4096
"""Tokens of context. Without positions nothing breaks beyond it; answers get worse slowly."""

# `:` opens every answer and END closes it, as in training. Marks after a question (`?`, `:`) are
# removed, so that its last three words stand right before the `:`.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}: {{ message.content }} " + END + "{{ ' ' }}"
    "{%- elif message.role == 'user' -%}{{ message.content.rstrip(' ?:.\\n') }}{{ ' ' }}"
    "{%- else -%}{{ message.content }}{{ ' ' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}:{%- endif -%}"
)


def tokenizer(ids: dict[str, int] = IDS, digits: bool = True) -> Tokenizer:
    """Make a tokenizer of whole words and punctuation, joined by spaces.

    ids: of all words. digits: each digit is a word.
    """
    made = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("isolated"),
            *([pre_tokenizers.Digits(individual_digits=True)] if digits else []),
        ]
    )
    made.add_special_tokens([UNKNOWN, END])
    return made


def config(shape: Shape, dtype: torch.dtype) -> dict[str, object]:
    """Return config.json in the spelling of published Granite 4 hybrids (`mamba`, `attention`)."""
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": len(shape.layers),
        "layer_types": list(shape.layers),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "position_embedding_type": "nope",
        "max_position_embeddings": LONGEST,
        "intermediate_size": shape.mlp,
        "shared_intermediate_size": shape.mlp,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "mamba_n_heads": shape.mamba_heads,
        "mamba_d_head": shape.mamba_head,
        "mamba_expand": shape.inner // shape.hidden,
        "mamba_n_groups": 1,
        "mamba_d_state": shape.state,
        "mamba_d_conv": shape.width,
        "mamba_chunk_size": shape.chunk,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "embedding_multiplier": shape.embedding_multiplier,
        "residual_multiplier": shape.residual_multiplier,
        "attention_multiplier": shape.attention_multiplier,
        "logits_scaling": shape.logits_scaling,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": IDS[END],
        "pad_token_id": None,
    }


def export(network: Network, folder: Path, dtype: torch.dtype) -> None:
    """Write to `folder`, created if missing, everything that a server needs.

    dtype: of the weights in the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.detach().to(dtype).contiguous() for name, value in network.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer().save(str(folder / "tokenizer.json"))
    described: dict[str, dict[str, object]] = {
        "config.json": config(network.shape, dtype),
        "generation_config.json": {
            "do_sample": False,
            "eos_token_id": IDS[END],
            "max_new_tokens": 16,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": UNKNOWN,
            "eos_token": END,
            "pad_token": END,
            "model_max_length": LONGEST,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in described.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
