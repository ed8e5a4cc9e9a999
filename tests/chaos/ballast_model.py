"""A hash model with a heavy state, so that a hand-off is long enough to be hit in its middle."""

from dataclasses import replace

import torch
from engine.hash_model import HashModel, hash_config, snapshots_of
from torch import Tensor

from baton.engine.layout.layout import RecurrentShape
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.config import ModelConfig
from baton.engine.step.forward_batch import ForwardBatch


def ballast_config(kib: int) -> ModelConfig:
    """The hash model's layers and one more, whose state has `kib` KiB."""
    config = hash_config()
    ballast = RecurrentShape(conv=(1, 1), ssm=(1, 1, kib * 1024 // 8))
    return replace(config, recurrent=(*config.recurrent, ballast))


class BallastModel(HashModel):
    """The ballast of a slot repeats its state: where one word of it differs, tokens change."""

    def __init__(self, kib: int = 2048) -> None:
        super().__init__(ballast_config(kib))

    def _row(self, batch: ForwardBatch, row: int, states: StatePool, pages: PagePool) -> Tensor:
        state, ballast = states.ssm[0], states.ssm[1]
        assert state is not None and ballast is not None
        whole = True
        if bool(batch.has_initial[row]):
            read = int(batch.read_slots[row])
            whole = bool(torch.equal(ballast[read], state[read].expand_as(ballast[read])))
        sums = super()._row(batch, row, states, pages)
        for slot in (int(batch.write_slots[row]), *snapshots_of(batch, row).values()):
            ballast[slot] = state[slot]
        return sums if whole else sums + 1
