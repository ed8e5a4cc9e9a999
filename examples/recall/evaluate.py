"""Measurements of how often the recall model is right, and how often a damaged hand-off makes it
wrong.

    cd examples && python -m recall.evaluate

The oracle is transformers: it prefills a prompt, samples the first answer token, may lose a part
of the cache as a broken hand-off would, and decodes the rest. An answer is right when every token
from the second on is. Servers are measured by the same `score` of the same questions.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from transformers import DynamicCache, GraniteMoeHybridForCausalLM
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from recall.questions import Question, held_out
from recall.story import TASKS

MODEL = Path(__file__).resolve().parent / "model"
LENGTHS = (64, 128, 256, 512, 1024)
PARTS = ("kv", "conv", "ssm")


def load(folder: Path = MODEL) -> GraniteMoeHybridForCausalLM:
    model = GraniteMoeHybridForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return cast(GraniteMoeHybridForCausalLM, model.train(False))


def exercise(length: int, number: int, tasks: Sequence[str] = TASKS) -> list[Question]:
    """Draw `number` held-out questions of this prompt length, the tasks in turn."""
    return [held_out(index, tasks[index % len(tasks)], length) for index in range(number)]


def damage(cache: DynamicCache, part: str, layer: int | None = None) -> None:
    """Zero the prompt's KV, every conv state or every SSM state, or only one layer's."""
    for index, held in enumerate(cache.layers):
        if layer is not None and index != layer:
            continue
        if isinstance(held, LinearAttentionLayer):
            states = {"conv": held.conv_states[0], "ssm": held.recurrent_states[0]}
            lost = [states[part]] if part in states else []
        elif isinstance(held, DynamicLayer):
            lost = [held.keys, held.values] if part == "kv" else []
        else:
            raise TypeError(f"layer {index} caches {type(held).__name__}: expected KV or SSM state")
        for tensor in lost:
            cast(torch.Tensor, tensor).zero_()


@torch.inference_mode()
def answer(
    model: GraniteMoeHybridForCausalLM,
    questions: Sequence[Question],
    lost: str | None = None,
    layer: int | None = None,
) -> list[list[int]]:
    """Return greedy answer ids, as many as each right answer has. Prompts must have one length."""
    cache = DynamicCache(config=model.config)
    prompts = torch.tensor([question.prompt_ids for question in questions])
    output = model(prompts, past_key_values=cache, use_cache=True, logits_to_keep=1)
    tokens = [output.logits[:, -1].argmax(-1)]
    if lost is not None:
        damage(cache, lost, layer)
    while len(tokens) < max(len(question.answer) for question in questions):
        output = model(tokens[-1][:, None], past_key_values=cache, use_cache=True)
        tokens.append(output.logits[:, -1].argmax(-1))
    rows = torch.stack(tokens, 1).tolist()
    return [row[: len(q.answer)] for row, q in zip(rows, questions, strict=True)]


def score(questions: Sequence[Question], answers: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the share of right answers (tokens 2 onward) for each task and for all (`mix`)."""
    right: dict[str, list[bool]] = {}
    for question, said in zip(questions, answers, strict=True):
        is_right = list(said[1:]) == question.answer_ids[1:]
        right.setdefault(question.task, []).append(is_right)
        right.setdefault("mix", []).append(is_right)
    return {task: sum(marks) / len(marks) for task, marks in right.items()}


def measure(
    model: GraniteMoeHybridForCausalLM,
    length: int,
    number: int,
    lost: str | None = None,
    layer: int | None = None,
    tasks: Sequence[str] = TASKS,
) -> dict[str, float]:
    """Return `score` over `number` held-out questions of `tasks`, 32 at a time."""
    questions = exercise(length, number, tasks)
    answers: list[list[int]] = []
    for start in range(0, number, 32):
        answers += answer(model, questions[start : start + 32], lost, layer)
    return score(questions, answers)


def row(title: str, shares: Sequence[float]) -> str:
    cells = (f"{100 * share:6.1f}" for share in shares)
    return f"| {title:<18} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--questions", type=int, default=400, help="for each line of the tables")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--damaged-length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load(options.model)
    columns = [*options.tasks, "mix"]
    head = f"| {'% right':<18} | " + " | ".join(f"{t:>6}" for t in columns) + " |"
    print(head, "|---" * (len(columns) + 1) + "|", sep="\n")

    def show(
        title: str, length: int, number: int, lost: str | None = None, layer: int | None = None
    ) -> None:
        scores = measure(model, length, number, lost, layer, options.tasks)
        print(row(title, [scores[column] for column in columns]), flush=True)

    for length in options.lengths:
        show(f"{length} tokens", length, options.questions)
    for part in PARTS:
        show(f"{part} lost", options.damaged_length, options.questions, part)
    for layer, kind in enumerate(model.config.layer_types or []):
        for part in ("kv",) if "full" in kind else ("conv", "ssm"):
            title = f"{part} lost, layer {layer}"
            show(title, options.damaged_length, options.questions // 4, part, layer)


if __name__ == "__main__":
    main()
