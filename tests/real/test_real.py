"""A model that people chat with, by its own template: `make real`.

Its answers are transformers', and what a weight format costs is told by the perplexity of a text of
this project. See `make_model` for what these figures are worth.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from eight_bit_packing import BLOCKS, Form, in_blocks, pack
from engine.test_oracle import load
from kit.narrowing import present
from kit.polling import wait_until
from openai import OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.core.sampling_params import SamplingParams
from baton.engine.settings.choices import WeightFormat
from baton.text.chat_template import ChatTemplate
from baton.text.conversation import Message
from baton.text.tokenizer import Tokenizer

GIVEN = os.environ.get("BATON_REAL_MODEL")
pytestmark = pytest.mark.skipif(GIVEN is None, reason="`make real` fetches the model")
MODEL = Path(GIVEN or "")
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three fruits, separated by commas.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
TEXT = Path(__file__).parents[2] / "ARCHITECTURE.md"
SCORED = 1500  # tokens of the text
ROWS = in_blocks(1, None, stored=torch.int8)
WEIGHTS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"weights": WEIGHTS, "targets": ["Linear"]}},
}
MOST = {"bfloat16": 1.01, "fp8": 1.05, "int8": 1.01, "rounded": 1.01}
"""The largest perplexities, as multiples of float32's."""
DEADLINE_S = 180.0


@cache
def prompts() -> list[tuple[int, ...]]:
    tokenizer, template = Tokenizer.from_folder(MODEL), ChatTemplate.from_folder(MODEL)
    shown = [template.render([Message("user", (each,))]) for each in QUESTIONS]
    return [tuple(tokenizer.encode(each, add_special_tokens=False)) for each in shown]


def test_prompts_and_greedy_answers_are_those_of_transformers() -> None:
    reference: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    engine = load(MODEL, dtype=torch.float32)
    outputs = engine.generate(prompts(), GREEDY)
    for question, ids, output in zip(QUESTIONS, prompts(), outputs, strict=True):
        chat = [{"role": "user", "content": question}]
        shown = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert tuple(tokenizer(shown, add_special_tokens=False).input_ids) == ids
        given = torch.tensor([ids])
        said = reference.generate(
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            max_new_tokens=GREEDY.max_tokens,
        )
        assert tuple(said[0, len(ids) :].tolist()) == output.token_ids
    engine.close()


@pytest.fixture(scope="module")
def float32() -> float:
    return perplexity(MODEL, torch.float32)


@pytest.mark.parametrize("name", MOST)
def test_a_weight_format_costs_little(float32: float, tmp_path: Path, name: str) -> None:
    folder, form = MODEL, WeightFormat.AUTO
    if name == "fp8":
        folder = packed(tmp_path, BLOCKS, "_scale_inv", FP8)
    elif name == "int8":
        folder = packed(tmp_path, ROWS, "_scale", INT8)
    elif name == "rounded":
        form = WeightFormat.INT8
    found = perplexity(folder, torch.bfloat16, weight_format=form)
    print(f"perplexity in {name}: {found:.3f}, {found / float32:.4f} of float32's {float32:.3f}")
    assert found < MOST[name] * float32


def packed(folder: Path, form: Form, scale: str, section: dict[str, Any]) -> Path:
    plain = folder / "plain"
    shutil.copytree(MODEL, plain)
    return pack(plain, {"*_proj.weight": form}, scale, {"quantization_config": section}).packed


def perplexity(folder: Path, dtype: torch.dtype, **options: Any) -> float:
    """Return the perplexity of the text's first tokens."""
    ids = Tokenizer.from_folder(folder).encode(TEXT.read_text(), add_special_tokens=False)[:SCORED]
    engine = load(folder, dtype=dtype, **options)
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs_start=1)
    (output,) = engine.generate([ids], sampling)
    engine.close()
    scores = [present(each.logprob) for each in output.prompt_logprobs]
    assert len(scores) == len(ids) - 1
    return math.exp(-sum(scores) / len(scores))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A client of `baton serve` with a worker of each role."""
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [
        str(Path(sys.executable).with_name("baton")), "serve", "--model", str(MODEL),
        "--port", "0", "--grpc-port", "0", "--prefill", "1", "--decode", "1",
        "--memory-gb", "2", "--threads", "1",
    ]  # fmt: skip
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        wait_until(
            lambda: "  HTTP  " in log.read_text() or process.poll() is not None,
            log.read_text,
            DEADLINE_S,
        )
        found = re.search(r"^  HTTP  (\S+)", log.read_text(), re.MULTILINE)
        assert found is not None, log.read_text()
        with OpenAI(base_url=f"{found[1]}/v1", api_key="none", timeout=DEADLINE_S) as client:
            yield client
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def test_a_cluster_says_what_transformers_says(client: OpenAI) -> None:
    engine = load(MODEL, dtype=torch.float32)
    tokenizer = Tokenizer.from_folder(MODEL)
    outputs = engine.generate(prompts(), GREEDY)
    engine.close()
    for question, output in zip(QUESTIONS, outputs, strict=True):
        reply = client.chat.completions.create(
            model=MODEL.name, temperature=0.0, max_tokens=GREEDY.max_tokens,
            messages=[{"role": "user", "content": question}],
        )  # fmt: skip
        assert reply.choices[0].message.content == text_of(tokenizer, output.token_ids)


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode([i for i in ids if i not in tokenizer.stop_ids])


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def test_an_agents_turns_though_the_template_knows_no_tools(client: OpenAI) -> None:
    """A call, its result, and an answer that tells it."""
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris, in C?"}]
    called = client.chat.completions.create(
        model=MODEL.name, messages=messages, tools=[TOOL], tool_choice="required",
        temperature=0.0, max_tokens=80,
    )  # fmt: skip
    message = called.choices[0].message
    assert called.choices[0].finish_reason == "tool_calls" and message.tool_calls
    (call,) = message.tool_calls
    assert call.type == "function" and json.loads(call.function.arguments)["city"] == "Paris"
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "21 degrees and sunny"},
    ]
    stream = client.chat.completions.create(
        model=MODEL.name, messages=messages, tools=[TOOL], temperature=0.0, max_tokens=60,
        stream=True,
    )  # fmt: skip
    answer = "".join(event.choices[0].delta.content or "" for event in stream if event.choices)
    assert "21" in answer and "sunny" in answer, answer
