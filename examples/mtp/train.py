"""Trains three small models, each in two parts: the body, then its MTP layer alone.

cd examples && nice python -m mtp.train qwen3_next    # or nemotron_h, deepseek_v3
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtp.export import export
from mtp.families import FAMILIES, HERE
from mtp.language import HELD_OUT, text
from mtp.network import Body, Drafter, made
from recall.train import optimizers, rate

LENGTH = 192  # tokens of a text
ROWS = 12  # texts of a step
LAYER_STEPS = 400
PEAK = 3e-3  # highest learning rate
TOLD_WEIGHT = 0.2  # of what hidden states tell beside the next token
REPORT = 50  # steps
EXAM = 64  # held-out texts


@dataclass(frozen=True)
class Texts:
    """Texts of one step. ids: [B, LENGTH] int64. forced: [B, LENGTH] bool"""

    ids: Tensor
    forced: Tensor


@dataclass(frozen=True)
class Guesses:
    """Guesses of the next token, or of a later one. logits: [B, L, vocab]. targets: [B, L]
    int64. counted: [B, L] bool, the targets that are forced. weight: of their loss"""

    logits: Tensor
    targets: Tensor
    counted: Tensor
    weight: float = 1.0

    @property
    def loss(self) -> Tensor:
        return self.weight * F.cross_entropy(self.logits[self.counted], self.targets[self.counted])

    @property
    def right(self) -> float:
        said = self.logits.argmax(-1) == self.targets
        return said[self.counted].float().mean().item()


def texts(first: int, count: int) -> Texts:
    """Draw texts of the seeds from `first` on."""
    drawn = [text(seed, LENGTH) for seed in range(first, first + count)]
    ids, forced = (
        torch.tensor([getattr(each, part) for each in drawn]) for part in ("ids", "forced")
    )
    return Texts(ids, forced)


def body_guesses(body: Body, drawn: Texts) -> list[Guesses]:
    """Run the model without its MTP layer: guess the next token, and what hidden states tell."""
    ids, all_count = drawn.ids, torch.ones_like(drawn.forced)
    logits, told = body(ids)
    found = [Guesses(logits[:, :-1], ids[:, 1:], drawn.forced[:, 1:])]
    for back, each in enumerate(told):
        length = ids.shape[1] - back
        found.append(Guesses(each[:, back:], ids[:, :length], all_count[:, back:], TOLD_WEIGHT))
    return found


def layer_guesses(model: Any, drafter: Drafter, drawn: Texts) -> list[Guesses]:
    """Run the MTP layer at each depth behind a model that stays as it is."""
    with torch.no_grad():
        embedded = model.get_input_embeddings()(drawn.ids)
        hidden = model.get_decoder()(drawn.ids, use_cache=False).last_hidden_state
    found = []
    for depth, out in enumerate(drafter(hidden, embedded)):
        # Result i belongs to the token at place 1 + i, and guesses the one behind it.
        logits, first = model.lm_head(out[:, depth:-1]), 2 + depth
        found.append(Guesses(logits, drawn.ids[:, first:], drawn.forced[:, first:]))
    return found


def train(
    module: nn.Module, steps: int, guess: Callable[[Texts], list[Guesses]], first: int
) -> None:
    """Train on texts of the seeds from `first` on, and print how many guesses are right."""
    both = optimizers(module, PEAK)
    losses = []
    for step in range(steps):
        for optimizer in both:
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps, PEAK)
        loss = torch.stack([each.loss for each in guess(texts(first + step * ROWS, ROWS))]).sum()
        module.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for optimizer in both:
            optimizer.step()
        losses.append(loss.item())
        if (step + 1) % REPORT == 0:
            mean, seconds = sum(losses[-REPORT:]) / REPORT, time.process_time()
            with torch.no_grad():
                right = " ".join(f"{each.right:.3f}" for each in guess(texts(HELD_OUT, EXAM)))
            print(
                f"{step + 1:6} {seconds:5.0f} s of a core, loss {mean:.4f}, right {right}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=list(FAMILIES))
    parser.add_argument("--folder", type=Path, help="where to export to: mtp/FAMILY by default")
    parser.add_argument("--body", type=Path, help="keeps the trained body; trained if missing")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    family = FAMILIES[options.family]
    model, drafter = made(family, {}), Drafter(family)
    count = sum(p.numel() for p in (*model.parameters(), *drafter.parameters()))
    print(f"{count:,} parameters", flush=True)
    if options.body and options.body.exists():
        model.load_state_dict(torch.load(options.body))
    else:
        body = Body(model)
        train(body, family.body_steps, lambda drawn: body_guesses(body, drawn), 0)
        if options.body:
            torch.save(model.state_dict(), options.body)
    model.requires_grad_(False)
    first = family.body_steps * ROWS
    train(drafter, LAYER_STEPS, lambda drawn: layer_guesses(model, drafter, drawn), first)
    export(family, model, drafter, options.folder or HERE / family.name)


if __name__ == "__main__":
    main()
