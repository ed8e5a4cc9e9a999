"""Nemotron-Nano-9B-v2-FP8: its file names, tensor names and configuration, at tiny sizes."""

import json
import logging
import math
import random
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from deploy.tiny_worker import Client, prompt, served
from eight_bit_packing import FILE, WHOLE, Pair, edit_tensors, keeps_eight_bit, pack
from safetensors.torch import load_file, save_file
from step_driver import StepDriver

from baton.bench.checkpoints import write_checkpoint
from baton.engine.assembly.loader import load_model
from baton.engine.loading.weights import INDEX_FILE
from baton.engine.settings.config import EngineConfig

PATTERN = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
CONFIG: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 16,
    "hidden_dropout": 0.0,
    "hidden_size": 64,
    "hybrid_override_pattern": PATTERN,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 16,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 8,
    "mamba_proj_bias": False,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "n_groups": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 56,
    "num_key_value_heads": 2,
    "num_logits_to_keep": 1,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "rms_norm_eps": 1e-05,
    "sliding_window": None,
    "ssm_state_size": 16,
    "tie_word_embeddings": False,
    "time_step_floor": 0.0001,
    "time_step_limit": [0.0, float("inf")],
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
    "use_mamba_kernels": True,
    "vocab_size": 320,
}
EXCLUDED = ["lm_head"]
EXCLUDED += [f"backbone.layers.{i}.mixer.conv1d" for i, kind in enumerate(PATTERN) if kind == "M"]
EXCLUDED += [
    f"backbone.layers.{i}.mixer.{name}_proj"
    for i, kind in enumerate(PATTERN)
    if kind == "*"
    for name in "qkvo"
]
STATIC = {"dynamic": False, "num_bits": 8, "type": "float"}
SECTION = {
    "config_groups": {
        "group_0": {"input_activations": STATIC, "weights": STATIC, "targets": ["Linear"]}
    },
    "ignore": EXCLUDED,
    "kv_cache_scheme": STATIC,
    "producer": {"name": "modelopt", "version": "0.33.0"},
    "quant_algo": "FP8",
    "quant_method": "modelopt",
}
OWN_FILE = {
    "producer": {"name": "modelopt", "version": "0.33.0"},
    "quantization": {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": EXCLUDED,
    },
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The checkpoint in two files with an index, and the same one expanded."""
    plain = write_checkpoint(tmp_path_factory.mktemp("nano") / "plain", CONFIG, torch.bfloat16)
    heed_states(plain)
    forms = {
        f"backbone.layers.{i}.mixer.{name}_proj.weight": WHOLE
        for i, kind in enumerate(PATTERN)
        for name in {"M": ("in", "out"), "-": ("up", "down"), "*": ()}[kind]
    }
    more = {
        f"backbone.layers.{i}.mixer.{name}_proj.{name}_scale": torch.tensor(0.25)
        for i, kind in enumerate(PATTERN)
        for name in ("k", "v")
        if kind == "*"
    }
    more |= {name.replace(".weight", ".input_scale"): torch.tensor(0.01) for name in forms}
    pair = pack(plain, forms, "_scale", {"quantization_config": SECTION}, more)
    (pair.packed / "hf_quant_config.json").write_text(json.dumps(OWN_FILE))
    shard(pair.packed)
    return pair


def heed_states(folder: Path) -> None:
    """Let answers depend on what the SSM state holds more than on the token itself, and let the
    state last for hundreds of tokens. Random layers multiply roundings of bfloat16; smaller logits
    keep their part in them small."""
    tensors = load_file(folder / FILE)
    skips = {name: tensor * 0.02 for name, tensor in tensors.items() if name.endswith(".D")}
    steps = {name: tensor + 2 for name, tensor in tensors.items() if name.endswith(".dt_bias")}
    slow = {name: tensor - 4 for name, tensor in tensors.items() if name.endswith(".A_log")}
    edit_tensors(folder, skips | steps | slow | {"lm_head.weight": tensors["lm_head.weight"] / 2})


def shard(folder: Path) -> None:
    """Put every second tensor into another file: weights and their scales are parted."""
    tensors = load_file(folder / FILE)
    names = list(tensors)
    files = {f"model-0000{n}-of-00002.safetensors": names[n - 1 :: 2] for n in (1, 2)}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    places = {name: file for file, part in files.items() for name in part}
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": places}))
    (folder / FILE).unlink()


def greedy(folder: Path, dtype: torch.dtype) -> list[int]:
    driver = StepDriver(load_model(EngineConfig(folder, dtype=dtype)))
    row = driver.start([5, 17, 300, 4, 111, 42, 7, 256])
    answer = [int(driver.prefill(row)[-1].argmax())]
    while len(answer) < 16:
        row.tokens.append(answer[-1])
        answer.append(int(driver.step(decode=[row])[0].argmax()))
    return answer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_answers_are_those_of_the_expanded_checkpoint(
    pair: Pair, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        found = greedy(pair.packed, dtype)
    assert found == greedy(pair.expanded, dtype)
    assert len(set(found)) > 2, "the model repeats itself, and would hide errors"
    said = [r.message for r in caplog.records if str(pair.packed) in r.message]
    assert said[0] == f"{pair.packed}: 104 8-bit weights (modelopt FP8) are read"
    kept = re.compile(r".*: [0-9.]+ [KM]iB of its weights stay in 8 bits")
    assert [bool(kept.fullmatch(line)) for line in said[1:]] == [True] * keeps_eight_bit(dtype)


def test_the_file_of_modelopt_alone_says_the_same(pair: Pair) -> None:
    path = pair.packed / "config.json"
    config = path.read_text()
    fields = json.loads(config)
    del fields["quantization_config"]
    path.write_text(json.dumps(fields))
    try:
        assert greedy(pair.packed, torch.float32) == greedy(pair.expanded, torch.float32)
    finally:
        path.write_text(config)


# Between answers that begin at a cached state and the same tokens computed from nothing: what
# SGLang's test of this checkpoint allows, in bfloat16. In float32, a two-hundredth of what the loss
# of the SSM state costs here (4e-4).
HIT_KL = {torch.bfloat16: 8e-3, torch.float32: 2e-6}
GRID = 128  # tokens between snapshots: the model's chunks


@pytest.mark.parametrize("dtype", HIT_KL, ids=str)
async def test_answers_after_hits_are_those_of_cold_prompts(pair: Pair, dtype: torch.dtype) -> None:
    """End to end: over HTTP, at temperature 1, from a state that a prompt left and from one that an
    answer left."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    engine: dict[str, Any] = {"dtype": dtype, "memory_bytes": 1 << 28, "max_model_len": 1024}
    apart: list[float] = []
    async with served(pair.packed, **engine) as client:
        for turn in range(3):
            first = prompt(rng, 2 * GRID + rng.randint(1, 9))
            said = await client.generate(first, 2 * GRID)
            whole = [*first, *said["output_ids"]]
            for known, least in ((first, 2 * GRID), (whole, len(first) + 1)):
                ids = [*known, *prompt(rng, rng.randint(1, 20))]
                apart += await distances(client, ids, turn, least)
    found = mean(math.expm1(ratio) - ratio for ratio in apart)
    print(f"seed {seed}: KL {found:.1e} over {len(apart)} tokens")
    assert found <= HIT_KL[dtype]


async def distances(client: Client, ids: list[int], seed: int, least: int) -> list[float]:
    """Return the log probabilities of an answer's tokens by a cold computation, each less the one
    that it had after a hit of at least `least` tokens."""
    scored = {"return_logprob": True}
    drawn = {"temperature": 1, "sampling_seed": seed}
    answer = (await client.generate(ids, 24, params=drawn, **scored))["meta_info"]
    assert answer["cached_tokens"] >= least
    written = [(entry[0], entry[1]) for entry in answer["output_token_logprobs"]]
    tokens = [*ids, *(token for _, token in written)]
    cold = (await client.generate(tokens, 0, logprob_start_len=0, **scored))["meta_info"]
    assert cold["cached_tokens"] == 0
    read = [entry[0] for entry in cold["input_token_logprobs"][len(ids) :]]
    return [score - found for score, (found, _) in zip(read, written, strict=True)]
