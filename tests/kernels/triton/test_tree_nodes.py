"""Tokens of a row that are a tree, on Triton kernels: the tests of the other kernels, under the
interpreter for the same bits as a row of a node's own path alone."""

import random
from collections.abc import Iterator

import pytest
import torch
from kernels.test_verify import KINDS
from triton_device import DEVICE

from baton.kernels.triton.triton_kernels import TritonKernels
from kernels import test_tree_nodes as others

KERNELS = TritonKernels()


@pytest.fixture(autouse=True)
def on_the_device() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_of_a_mixer_follows_its_parent(kind: str, rng: random.Random) -> None:
    others.test_a_node_of_a_mixer_follows_its_parent_and_no_state_is_written(kind, 0, KERNELS, rng)


@pytest.mark.parametrize("latent", [False, True], ids=["heads", "latents"])
def test_a_node_attends_to_its_ancestors(latent: bool, rng: random.Random) -> None:
    dtype = rng.choice([torch.float32, torch.bfloat16])
    others.test_a_node_attends_to_its_ancestors_as_if_they_lay_one_after_another(
        latent, dtype, 0, KERNELS, rng
    )
