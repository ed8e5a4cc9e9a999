"""Tiny random checkpoints, made and saved by transformers (which takes seconds to import)."""

from pathlib import Path
from typing import Any

import torch
from oracle.specs import Spec

from baton.bench.checkpoints import write_tokenizer
from baton.engine.loading.weights import DummyWeights

_SEED = 3


def make_checkpoint(spec: Spec, folder: Path) -> Path:
    """Write `spec` to `folder`, with logits of standard deviation one, and a tokenizer."""
    model = _untrained(spec)
    source = DummyWeights(_SEED, gain=spec.gain)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source.tensor(name, tuple(parameter.shape)))
            for end, factor in spec.scaled.items():
                if name.endswith(end):
                    parameter.mul_(factor)
        generator = torch.Generator().manual_seed(_SEED)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # zero would not show that it is used
                buffer.normal_(0.0, 0.2, generator=generator)
        ids = torch.randint(3, spec.config["vocab_size"], (4, 64), generator=generator)
        std = model(ids, position_ids=torch.arange(64).expand(4, 64)).logits.std()
        centre = 1.0 if spec.zero_centred else 0.0
        model.get_parameter(spec.final_norm).add_(centre).div_(std).sub_(centre)
    model.save_pretrained(folder)
    write_tokenizer(folder, spec.config["vocab_size"])
    return folder


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' own model of the checkpoint in `folder`, ready to run."""
    transformers = _transformers()
    # torch's grouped product of experts knows no float64.
    one_by_one = {"experts_implementation": "eager"} if dtype is torch.float64 else {}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **one_by_one)
    return loaded.eval()


def _untrained(spec: Spec) -> Any:
    transformers = _transformers()
    config = transformers.AutoConfig.for_model(spec.model_type, **spec.config)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def _transformers() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers
