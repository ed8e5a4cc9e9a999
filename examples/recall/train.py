"""Trains the recall model by a curriculum of lengths; stop it at any time and start it again.

cd examples && nice python -m recall.train    # recall/.work/train.pt, then recall/model/

Examples with another shape or curriculum call `main` with a `Course` of their own.
"""

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from recall.export import export
from recall.language import VOCABULARY
from recall.lessons import IGNORED, lesson
from recall.network import Network, Shape
from recall.questions import held_out
from recall.story import LEARNT, TASKS

HERE = Path(__file__).resolve().parent
WARM_UP = 50
REPORT = 100
"""Steps between saved checkpoints."""


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: streams of these lengths up to this step."""

    until: int
    lengths: tuple[int, ...]
    tokens: int  # in a batch
    tasks: tuple[str, ...] = TASKS
    forget: float = 0.0  # what the SSM state loses at every token: exp(-forget)


@dataclass(frozen=True)
class Course:
    """A model that is trained, the stages of its training, and the folder of its example."""

    folder: Path  # of the example; gets .work/ and model/
    shape: Shape
    learnt: tuple[str, ...]  # the tasks that the model of this training answers
    stages: tuple[Stage, ...]
    dtype: torch.dtype = torch.float32  # of the weights in model/; training is in fp32

    @property
    def steps(self) -> int:
        return self.stages[-1].until

    def stage_of(self, step: int) -> Stage:
        return next(stage for stage in self.stages if step < stage.until)


FACTS = ("recall", "recall", "copy")
SUMS = ("count", "count", "mixed", "recall", "copy")
# The SSM state could hold some 20 facts, as linear attention does. A model that learns that first
# leaves its KV pages unused. So facts come first, while the SSM state forgets at every token. Sums
# take longest.
COURSE = Course(
    HERE,
    Shape(len(VOCABULARY)),
    LEARNT,
    (
        Stage(600, (64,), 2048, FACTS, 0.3),
        Stage(1_000, (64, 128), 3072, FACTS, 0.3),
        Stage(1_300, (64, 128), 3072),
        Stage(1_800, (128, 256), 4096),
        Stage(2_700, (64, 128, 256), 4096, SUMS),
        Stage(3_600, (64, 128, 256, 512), 4096, SUMS),
    ),
)


def rate(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: linear warm-up, then a cosine down to a fiftieth of the peak."""
    fallen = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    return peak * min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * fallen)


def batch(step: int, stage: Stage) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of this step, [B, L] int64; equal whenever the step is run."""
    length = Random(step).choice(stage.lengths)
    rows = stage.tokens // length
    lessons = [lesson(step * 1_000 + row, length, stage.tasks) for row in range(rows)]
    inputs, targets = zip(*lessons, strict=True)
    return torch.tensor(inputs), torch.tensor(targets)


@torch.no_grad()
def exam(network: Network, length: int, number: int, stage: Stage) -> dict[str, float]:
    """Return the share of held-out answers right in every token, by task of this stage
    (teacher-forced greedy).
    """
    scores = {}
    for task in dict.fromkeys(stage.tasks):
        questions = [held_out(index, task, length) for index in range(number)]
        answer = torch.tensor([q.answer_ids for q in questions])
        rows = [q.prompt_ids + q.answer_ids for q in questions]
        padded = -len(rows[0]) % network.shape.chunk
        logits = network(torch.tensor([row + [0] * padded for row in rows]), stage.forget)
        said = logits[:, length - 1 : length - 1 + answer.shape[1]].argmax(-1)
        scores[task] = (said == answer).all(1).float().mean().item()
    return scores


def optimizers(network: torch.nn.Module, peak: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers, AdamW for everything else.

    Queries and keys are left to AdamW: before lookups form, their gradients are noise, which Muon
    would follow at full speed into attention that is sharp and arbitrary.
    """
    inside: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in network.named_parameters():
        is_matrix = ".layers." in name and parameter.dim() == 2
        is_match = "q_proj" in name or "k_proj" in name
        (inside if is_matrix and not is_match else rest).append(parameter)
    return [
        torch.optim.Muon(inside, lr=peak, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=peak, weight_decay=0.01),
    ]


class TrainingRun:
    """A training run kept in one file: created, or continued from that file."""

    def __init__(self, saved: Path, course: Course, peak: float, seed: int = 0) -> None:
        """seed: of the first weights; lessons depend on the step alone."""
        torch.manual_seed(seed)
        self._saved = saved
        self._course = course
        self._peak = peak
        self.network = Network(course.shape)
        self._optimizers = optimizers(self.network, peak)
        self.step = 0
        if saved.exists():
            state = torch.load(saved)
            self.network.load_state_dict(state["network"])
            for optimizer, held in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(held)
            self.step = state["step"]

    def advance(self) -> float:
        """Train one step on its own batch and return its loss."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(self.step, self._course.steps, self._peak)
        stage = self._course.stage_of(self.step)
        inputs, targets = batch(self.step, stage)
        logits = self.network(inputs, stage.forget)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        self.network.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
        self.step += 1
        return loss.item()

    def save(self) -> None:
        """Replace the file in one move, so that a kill at any time leaves a whole one."""
        held = [optimizer.state_dict() for optimizer in self._optimizers]
        self._saved.parent.mkdir(parents=True, exist_ok=True)
        half = self._saved.with_suffix(".new")
        state = {"network": self.network.state_dict(), "optimizers": held, "step": self.step}
        torch.save(state, half)
        half.replace(self._saved)


def main(course: Course) -> None:
    """Train as the command line asks, or go on with a run that was stopped, and export."""
    parser = argparse.ArgumentParser()
    work, model = course.folder / ".work", course.folder / "model"
    parser.add_argument("--work", type=Path, default=work, help="where to resume from")
    parser.add_argument("--model", type=Path, default=model, help="where to export to")
    parser.add_argument("--peak", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = TrainingRun(options.work / "train.pt", course, options.peak, options.seed)
    parameters = sum(parameter.numel() for parameter in run.network.parameters())
    print(f"{parameters:,} parameters, from step {run.step} of {course.steps}", flush=True)
    losses = []
    while run.step < course.steps:
        losses.append(run.advance())
        if run.step % REPORT == 0:
            run.save()
            stage = course.stage_of(run.step - 1)
            length = max(stage.lengths)
            scores = exam(run.network, length, 32, stage)
            marks = " ".join(f"{task} {right:.2f}" for task, right in scores.items())
            mean, seconds = sum(losses) / len(losses), time.process_time()
            losses.clear()
            print(
                f"{run.step:6} {seconds:7.0f} s of a core, loss {mean:.4f}, {length}: {marks}",
                flush=True,
            )
    export(run.network, options.model, course.dtype)


if __name__ == "__main__":
    main(COURSE)
