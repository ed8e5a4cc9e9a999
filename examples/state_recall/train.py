"""Trains the state recall model; stop it at any time and start it again.

cd examples && nice python -m state_recall.train    # state_recall/.work/train.pt, then model/
"""

from pathlib import Path

import torch

from recall.language import VOCABULARY
from recall.network import Shape
from recall.train import Course, Stage, main

HERE = Path(__file__).resolve().parent
LEARNT = ("recall",)
# The only attention layer comes first. There a token's KV depends on that token alone, so no key
# says which name a thing belongs to: facts must go through the SSM states of the layers behind it.
SHAPE = Shape(
    len(VOCABULARY),
    layers=("attention", "mamba", "mamba"),
    mlp=128,
    state=64,
    key_delay=2,  # as in "ada likes plum": the name stands two words before the thing
)
COURSE = Course(
    HERE,
    SHAPE,
    LEARNT,
    (
        Stage(300, (64,), 2048, LEARNT),
        Stage(600, (64, 128), 3072, LEARNT),
        Stage(900, (64, 128, 256), 4096, LEARNT),
        Stage(1_200, (64, 128, 256, 512), 4096, LEARNT),
    ),
    torch.bfloat16,
)


if __name__ == "__main__":
    main(COURSE)
