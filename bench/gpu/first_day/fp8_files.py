"""FP8 checkpoints as quantisers write them, made of plain ones."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad

from baton.engine.loading.weights import SINGLE_FILE
from baton.engine.models.fields import CONFIG_FILE

FP8 = torch.float8_e4m3fn
_LARGEST = 448.0  # of FP8
_LEAST_SCALE = 1e-12
_PLAIN = ("embed", "conv", "router", "gate.weight")  # of tensors that quantisers leave as they are
_BY_CHANNEL = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        }
    },
}


def quantise(folder: Path, block: tuple[int, int] | None) -> int:
    """Rewrite the matrices of a checkpoint of one file in FP8, stacked experts too. Return their
    number.

    block: rows and columns that share a scale; None: each row has one
    """
    tensors = load_file(folder / SINGLE_FILE)
    matrices = [name for name, each in tensors.items() if _is_matrix(name, each)]
    for name in matrices:
        weight = tensors[name].float()
        values, scales = scaled(weight, block or (1, weight.shape[-1]))
        end = "_scale" if block is None else "_scale_inv"
        tensors[name], tensors[name + end] = values.contiguous(), scales.contiguous()
    save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    section = {"quant_method": "fp8", "weight_block_size": block} if block else _BY_CHANNEL
    config["quantization_config"] = section
    (folder / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
    return len(matrices)


def _is_matrix(name: str, tensor: Tensor) -> bool:
    return tensor.dim() in (2, 3) and not any(word in name for word in _PLAIN)


def scaled(weight: Tensor, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return FP8 numbers, and what they are multiplied by.

    weight: [..., N, K] float32 -> the same in FP8, [..., N / rows, K / columns] float32
    """
    rows, columns = block
    high, wide = weight.shape[-2:]
    padded = pad(weight, (0, -wide % columns, 0, -high % rows))
    shape = (*weight.shape[:-2], padded.shape[-2] // rows, rows, padded.shape[-1] // columns)
    largest = padded.view(*shape, columns).abs().amax(dim=(-3, -1))
    scales = (largest / _LARGEST).clamp(min=_LEAST_SCALE)
    each = scales.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return (weight / each[..., :high, :wide]).to(FP8), scales
