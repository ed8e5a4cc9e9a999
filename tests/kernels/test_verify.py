"""Several tokens a row, and single steps of the same kernels: the same bits, on poisoned pools."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from kernels.native_cases import random_mixer, strided
from kernels.test_native_delta import random_inputs
from kernels.test_native_delta import random_mixer as random_delta
from torch import Tensor

from baton.kernels.base import Kernels
from baton.kernels.delta_mixer import DeltaInputs, DeltaLayers, DeltaWeights
from baton.kernels.mamba2 import Mamba2Layers, Mamba2Weights
from baton.kernels.native.recorder import Native
from baton.kernels.native_kernels import NativeKernels
from baton.kernels.torch_kernels import TORCH
from baton.kernels.verify import Accepted

ROWS, SLOTS = 3, 14
KINDS = ["short conv", "conv of x alone", "mamba2", "mamba2, gate last", "gated delta", "kda"]


# Of a mixer, for its commit: of the short convolution its taps.
Weights = Mamba2Weights | DeltaWeights | int


@dataclass(frozen=True)
class Mixer:
    """One mixer on one implementation. x: [B * Q, n], the tokens' inputs."""

    x: Tensor
    pools: tuple[Tensor, ...]  # of SLOTS slots
    kept_width: int
    step: Callable[..., Tensor]  # (x [B, n], pools, read, write, has_initial) -> [B, outputs]
    verify: Callable[..., Tensor]  # (x, pools, read, has_initial, kept) -> [B * Q, outputs]
    commits: Callable[..., None]  # of this layer alone: (kept, pools, accepted), each of one layer
    weights: Weights

    def clone(self) -> tuple[Tensor, ...]:
        return tuple(pool.clone() for pool in self.pools)

    def commit(self, kept: Tensor, pools: tuple[Tensor, ...], accepted: Accepted) -> None:
        self.commits(kept[None], *(pool[None] for pool in pools), accepted)


def commit_of(kernels: Kernels, layers: Sequence[Weights]) -> Callable[..., None]:
    """The commit of layers of one kind: (kept, *pools, accepted)."""
    first = layers[0]
    if isinstance(first, Mamba2Weights):
        mamba2 = [each for each in layers if isinstance(each, Mamba2Weights)]
        return partial(kernels.mamba2_commit, Mamba2Layers.of(mamba2))
    if isinstance(first, DeltaWeights):
        delta = [each for each in layers if isinstance(each, DeltaWeights)]
        return partial(kernels.gated_delta_commit, DeltaLayers.of(delta))
    return lambda kept, conv, accepted: kernels.gated_conv_commit(kept, first, conv, accepted)


def pool(shape: tuple[int, ...], dtype: torch.dtype, rng: random.Random) -> Tensor:
    """A pool whose slots are strided, with NaN between them."""
    size = torch.Size(shape).numel()
    return strided(SLOTS, size, rng).to(dtype).unflatten(1, shape)


def make(kind: str, kernels: Kernels, tokens: int, dtype: torch.dtype, rng: random.Random) -> Mixer:
    width = rng.choice([3, 4])
    count = ROWS * tokens
    if "conv" in kind:
        channels = rng.choice([5, 300])
        weight, bias = torch.randn(channels, width), torch.randn(channels)
        return Mixer(
            torch.randn(count, (1 if kind.endswith("alone") else 3) * channels),
            (pool((channels, width - 1), dtype, rng),),
            channels,
            lambda x, p, *slots: kernels.gated_conv_step(x, weight, bias, *p, *slots),
            lambda x, p, *more: kernels.gated_conv_verify(x, weight, bias, *p, *more),
            commit_of(kernels, [width]),
            width,
        )
    if kind.startswith("mamba2"):
        mixer = random_mixer(4, rng.choice([5, 16]), 2, rng.choice([7, 40, 72, 200]), width, rng)
        mixer = replace(mixer, gate_last=kind.endswith("last"))
        channels = mixer.conv_weight.shape[0]
        return Mixer(
            strided(count, sum(mixer.splits), rng),
            (
                pool((channels, width - 1), dtype, rng),
                pool((mixer.heads, mixer.head_dim, mixer.d_state), dtype, rng),
            ),
            channels + mixer.heads,
            lambda x, p, *slots: kernels.mamba2_step(mixer, x, *p, *slots),
            lambda x, p, *more: kernels.mamba2_verify(mixer, x, *p, *more),
            commit_of(kernels, [mixer]),
            mixer,
        )
    key_heads = 2
    heads = key_heads if kind == "kda" else 4
    delta = random_delta((key_heads, heads, 9, rng.choice([10, 70])), kind == "kda", rng)
    width = delta.conv_weight.shape[1]
    inputs = random_inputs(count, delta, rng)
    parts = (inputs.qkv, inputs.z, inputs.b, inputs.a)
    widths = [part.shape[1] for part in parts]

    def given(x: Tensor) -> DeltaInputs:
        return DeltaInputs(*x.split(widths, dim=1))

    channels = delta.conv_weight.shape[0]
    return Mixer(
        torch.cat(parts, dim=1),
        (
            pool((channels, width - 1), dtype, rng),
            pool((delta.heads, delta.key_dim, delta.value_dim), dtype, rng),
        ),
        channels + widths[2] + widths[3],
        lambda x, p, *slots: kernels.gated_delta_step(delta, given(x), *p, *slots),
        lambda x, p, *more: kernels.gated_delta_verify(delta, given(x), *p, *more),
        commit_of(kernels, [delta]),
        delta,
    )


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "torch":
        return TORCH
    return NativeKernels(request.getfixturevalue("native"))


@dataclass(frozen=True)
class Case:
    mixer: Mixer
    tokens: int
    read: Tensor
    has_initial: Tensor | None

    def of_token(self, token: int) -> Tensor:
        return self.mixer.x.view(ROWS, self.tokens, -1)[:, token]

    def stepped(self) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
        """Outputs [B, n] and states of each token in turn, by single steps in slots 1 to ROWS of
        other pools."""
        pools = tuple(p[self.read].clone() for p in self.mixer.pools)
        pools = tuple(torch.cat((p[:1], p)) for p in pools)
        slots, has_initial = torch.arange(1, ROWS + 1), self.has_initial
        outputs, states = [], []
        for token in range(self.tokens):
            y = self.mixer.step(self.of_token(token), pools, slots, slots, has_initial)
            outputs.append(y.clone())
            states.append(tuple(p[1:].clone() for p in pools))
            has_initial = None
        return outputs, states


@pytest.fixture(params=KINDS)
def case(request, kernels, rng) -> Case:
    tokens = rng.choice([1, 2, 4, 8])
    dtype = rng.choice([torch.float32, torch.bfloat16])
    print(f"{tokens} tokens, {dtype}")
    return random_case(request.param, kernels, tokens, dtype, rng)


def random_case(
    kind: str, kernels: Kernels, tokens: int, dtype: torch.dtype, rng: random.Random
) -> Case:
    """Rows that read any slots; of some all have a state, of others half."""
    mixer = make(kind, kernels, tokens, dtype, rng)
    read = torch.tensor(rng.sample(range(1, SLOTS), ROWS))
    if rng.random() < 0.5:
        return Case(mixer, tokens, read, None)
    has_initial = torch.tensor([rng.random() < 0.5 for _ in range(ROWS)])
    for p in mixer.pools:
        p[read[~has_initial]] = torch.nan
    return Case(mixer, tokens, read, has_initial)


def bits(tensor: Tensor) -> Tensor:
    """So that NaN equals itself."""
    return tensor.contiguous().view(torch.uint8)


def verified(case: Case) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Outputs [B, Q, n], pools and what is kept, after a verification."""
    pools = case.mixer.clone()
    size = ROWS * case.tokens, case.mixer.kept_width
    kept = torch.full(size, torch.nan, dtype=case.mixer.x.dtype)
    y = case.mixer.verify(case.mixer.x, pools, case.read, case.has_initial, kept)
    return y.view(ROWS, case.tokens, -1), pools, kept


@dataclass(frozen=True)
class Wish:
    """The tokens that each row commits. track_counts: 0: no snapshot."""

    counts: list[int]
    track_counts: list[int]
    in_place: bool

    @staticmethod
    def random(tokens: int, in_place: bool, rng: random.Random) -> "Wish":
        counts = [rng.randrange(tokens + 1) for _ in range(ROWS)]
        tracked = [rng.random() < 0.7 for _ in range(ROWS)]
        track_counts = [rng.randint(1, tokens) if is_tracked else 0 for is_tracked in tracked]
        return Wish(counts, track_counts, in_place)


def committed(case: Case, wish: Wish) -> tuple[list[Tensor], list[Tensor]]:
    """Pools but for slot 0, after a commit, and as single steps would leave them."""
    print(wish)
    _, _, kept = verified(case)
    others = [slot for slot in range(1, SLOTS) if slot not in case.read.tolist()]
    write = case.read.tolist() if wish.in_place else [others.pop() for _ in range(ROWS)]
    track_slots = [others.pop() if count else 0 for count in wish.track_counts]
    pools, wanted = case.mixer.clone(), case.mixer.clone()
    _, states = case.stepped()
    for row, count in enumerate(wish.counts):
        tracked = wish.track_counts[row]
        for p, of_token in zip(wanted, zip(*states, strict=True), strict=True):
            if count:
                p[write[row]] = of_token[count - 1][row]
            if 0 < tracked <= count:
                p[track_slots[row]] = of_token[tracked - 1][row]
    listed = (write, wish.counts, track_slots, wish.track_counts)
    slots, counts, track, track_counts = map(torch.tensor, listed)
    accepted = Accepted(case.read, slots, case.has_initial, counts, track, track_counts)
    case.mixer.commit(kept, pools, accepted)
    return [p[1:] for p in pools], [p[1:] for p in wanted]


@pytest.mark.parametrize("repeat", range(4))
def test_verified_tokens_are_those_of_single_steps_and_no_state_is_written(case, repeat):
    y, pools, kept = verified(case)
    outputs, _ = case.stepped()
    assert torch.equal(y, torch.stack(outputs, dim=1))
    for before, after in zip(case.mixer.pools, pools, strict=True):
        assert torch.equal(bits(before), bits(after))
    assert not kept.isnan().any()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("repeat", range(4))
def test_committed_states_are_those_of_single_steps(case, repeat, in_place, rng):
    for got, expected in zip(
        *committed(case, Wish.random(case.tokens, in_place, rng)), strict=True
    ):
        assert torch.equal(bits(got), bits(expected))


def committed_layers(
    kind: str, kernels: Kernels, dtype: torch.dtype, rng: random.Random
) -> list[tuple[Tensor, Tensor]]:
    """The pools of two layers but for slot 0, committed together and one after the other. In their
    storage each slot has the first layer's state, then the second's."""
    seed, tokens = rng.random(), 2
    mixers = [make(kind, kernels, tokens, dtype, random.Random(seed)) for _ in range(2)]
    pools = [
        torch.stack(of_layers, dim=1).transpose(0, 1)
        for of_layers in zip(*(mixer.pools for mixer in mixers), strict=True)
    ]
    kept = torch.randn(2, ROWS * tokens + 3, mixers[0].kept_width)[:, : ROWS * tokens]
    accepted = Accepted(
        read_slots=torch.tensor([1, 2, 3]),
        write_slots=torch.tensor([4, 2, 5]),
        has_initial=torch.tensor([True, True, False]),
        counts=torch.tensor([2, 1, 0]),
        track_slots=torch.tensor([6, 7, 8]),
        track_counts=torch.tensor([1, 2, 1]),
    )
    apart = [pool.clone() for pool in pools]
    for layer, mixer in enumerate(mixers):
        mixer.commit(kept[layer].clone(), tuple(pool[layer] for pool in apart), accepted)
    weights = [mixer.weights for mixer in mixers]
    commit_of(kernels, weights)(kept, *pools, accepted)
    return [(pool[:, 1:], one[:, 1:]) for pool, one in zip(pools, apart, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_commit_together_get_the_states_that_each_gets_alone(kind, kernels, rng):
    for together, apart in committed_layers(kind, kernels, torch.float32, rng):
        assert torch.equal(bits(together), bits(apart))


def test_a_native_row_is_the_same_bits_in_every_batch_and_on_every_number_of_threads(native, rng):
    mixer = make("mamba2", NativeKernels(native), 4, torch.float32, rng)
    read = torch.tensor([3, 1, 2])
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            kept = torch.empty(ROWS * 4, mixer.kept_width)
            results.append(mixer.verify(mixer.x, mixer.clone(), read, None, kept).clone())
            alone = [
                mixer.verify(
                    mixer.x[4 * row : 4 * row + 4], mixer.clone(), read[row : row + 1], None,
                    kept[:4],
                ).clone()
                for row in range(ROWS)
            ]  # fmt: skip
            results.append(torch.cat(alone))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)


def test_they_can_be_recorded(native, rng):
    """A recording reads the counts of accepted tokens where they lie."""
    recorder = Native(native.library)
    mixer = make("gated delta", NativeKernels(recorder), 4, torch.float32, rng)
    read, kept = torch.tensor([1, 2, 3]), torch.empty(ROWS * 4, mixer.kept_width)
    counts, none = torch.zeros(ROWS, dtype=torch.int64), torch.zeros(ROWS, dtype=torch.int64)
    accepted = Accepted(read, read, None, counts, none, none)
    pools, wanted = mixer.clone(), mixer.clone()

    def both() -> Tensor:
        y = mixer.verify(mixer.x, pools, read, None, kept)
        mixer.commit(kept, pools, accepted)
        return y

    recording, _ = recorder.record(both)
    counts.copy_(torch.tensor([4, 0, 2]))
    recording.run()
    mixer.verify(mixer.x, wanted, read, None, kept)
    mixer.commit(kept, wanted, accepted)
    for got, expected in zip(pools, wanted, strict=True):
        assert torch.equal(bits(got[1:]), bits(expected[1:]))
