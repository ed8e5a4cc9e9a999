"""Export of a model with its MTP layer as a Hugging Face folder: config, weights, tokenizer."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mtp.families import LONGEST, MtpFamily
from mtp.language import END, IDS, UNKNOWN
from mtp.network import Drafter
from recall.export import tokenizer

_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


def export(family: MtpFamily, model: Any, drafter: Drafter, folder: Path) -> None:
    """Write to `folder`, created if missing, everything that a server needs."""
    folder.mkdir(parents=True, exist_ok=True)
    config, weights = _saved(model)
    _, donated = _saved(drafter.donor)
    for name, tensor in donated.items():
        own = family.rename(name)
        if own is not None:
            weights[own] = tensor
    weights[family.fuse] = drafter.fuse.weight.detach()
    weights[family.embedding_norm] = drafter.embedding_norm.detach()
    weights[family.hidden_norm] = drafter.hidden_norm.detach()
    halved = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(halved, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer(IDS, digits=False).save(str(folder / "tokenizer.json"))
    described: dict[str, dict[str, Any]] = {
        "config.json": config | {"dtype": "bfloat16", "num_nextn_predict_layers": 1},
        "generation_config.json": {"do_sample": False, "eos_token_id": IDS[END]},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": UNKNOWN,
            "eos_token": END,
            "pad_token": END,
            "model_max_length": LONGEST,
            "clean_up_tokenization_spaces": False,
            "chat_template": _CHAT_TEMPLATE,
        },
    }
    for name, content in described.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _saved(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors of a model, by the names of published checkpoints."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        return config, load_file(Path(folder) / "model.safetensors")
