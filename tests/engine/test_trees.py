"""Trees of drafts: their shapes, their memory, what refuses them, and faults in them."""

import random
from collections.abc import Callable

import pytest
import torch
from engine.engines import finish_of, greedy, make_engine, random_prompt, tokens_of
from engine.hash_model import VOCAB, HashModel, hash_config
from engine.proposers import Known, KnownOnDevice, KnownTree, proposing
from engine.test_speculation import NGRAM, answers, assert_same, speculating

from baton.core.errors import ConfigError, InvariantError
from baton.core.sampling_params import SamplingParams
from baton.engine.forward import runner, verification
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.kernels.torch_kernels import TorchKernels

Ways = Callable[[list[int]], list[list[int]]]
"""Returns continuations, one of which is right, of the right one."""


def other(token: int) -> int:
    return (token + 1) % VOCAB


def parting_last(right: list[int]) -> list[list[int]]:
    """They share all but their last token; the wrong one comes first."""
    return [[*right[:-1], other(right[-1])], right]


def right_first(right: list[int]) -> list[list[int]]:
    return [right, [other(token) for token in right]]


def right_last(right: list[int]) -> list[list[int]]:
    return [[other(token) for token in right], [other(other(token)) for token in right], right]


class Shaped(KnownTree):
    """A tree of a fixed shape around what is right."""

    def __init__(self, known: Known, ways: Ways, depth: int) -> None:
        super().__init__(known, 2, depth)
        self._shaped = ways

    def _ways(self, tokens: list[int]) -> list[list[int]]:
        right = list(self._mine.propose(0, tokens, self._shape[1]))
        return self._shaped(right) if right else []


@pytest.mark.parametrize("ways", [parting_last, right_first, right_last])
@pytest.mark.parametrize("depth", [2, 4, 5])
def test_the_right_path_is_taken_whole_wherever_it_lies(
    ways: Ways, depth: int, seeded: random.Random
) -> None:
    """The grid of snapshots is 16, so that commits cross it; the canary checks what is read."""
    specs = [RequestSpec(f"r{i}", random_prompt(seeded, 20, 40), greedy(45)) for i in range(3)]
    options = {"canary": True, "cached_snapshots": 30}
    plain, _ = answers(specs, **options)
    sequences = [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs]
    known = Known(sequences, 1.0, VOCAB, seeded)
    tree = Shaped(known, ways, depth)
    found, engine = answers(
        specs,
        speculative_algorithm=NGRAM,
        speculative_num_draft_tokens=16,
        speculative_eagle_topk=3,
        speculative_num_steps=depth,
        proposer=known,
        guesser=KnownOnDevice(known),
        tree=tree,
        **options,
    )
    assert_same(specs, plain, found)
    assert tree.branched
    lengths = engine.counters.accepted_length_tokens
    assert lengths[depth] >= 3 * (45 // (depth + 1) - 3)  # the newest token, and the whole path
    assert sum(lengths[depth + 1 :]) == 0
    for spec in specs:  # snapshots at the same depths
        ends = [finish_of(events, spec.request_id).state_tokens for events in (plain, found)]
        assert ends[0] == ends[1] > 0


def test_several_known_continuations_give_more_tokens_than_one() -> None:
    """Answers of two tokens at random: what follows an n-gram is now the one, now the other."""
    rng = random.Random(3)
    specs = [
        RequestSpec(
            f"r{i}",
            tuple(rng.choices((5, 6), k=60)),
            SamplingParams(
                temperature=1.0, seed=i, max_tokens=80, ignore_eos=True, allowed_token_ids=(5, 6)
            ),
        )
        for i in range(4)
    ]
    plain, _ = answers(specs)
    steps = {}
    for topk in (1, 2, 4):
        found, engine = answers(
            specs,
            speculative_algorithm=NGRAM,
            speculative_num_draft_tokens=8,
            speculative_eagle_topk=topk,
        )
        assert_same(specs, plain, found)
        steps[topk] = engine.counters.steps
    assert steps[4] < steps[2] < steps[1]


@pytest.mark.parametrize("length", [1 << 10, 1 << 18])
def test_links_take_a_word_a_node_whatever_the_context(length: int) -> None:
    model = HashModel(hash_config(max_model_len=length))
    engine = make_engine(
        model,
        max_running=3,
        speculative_algorithm=NGRAM,
        speculative_num_draft_tokens=9,
        speculative_eagle_topk=2,
    )
    nodes = engine._runner._nodes
    assert nodes is not None and nodes.nbytes == engine.plan.step.links == 3 * 16 * 8


def test_links_stay_where_they_are(seeded: random.Random) -> None:
    specs = [RequestSpec(f"r{i}", random_prompt(seeded, 20, 40), greedy(20)) for i in range(3)]
    plain, _ = answers(specs)
    seen: set[int] = set()

    class Watched(HashModel):
        def forward(self, batch, states, pages):
            if batch.nodes is not None:
                seen.add(batch.nodes.data_ptr())
            return super().forward(batch, states, pages)

    found, _, _ = speculating(specs, plain, 0.9, "tree", seeded, model=Watched())
    assert_same(specs, plain, found)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"speculative_algorithm": SpeculativeAlgorithm.AUTO},
            "auto chooses the length of chains",
        ),
        ({"device": "cuda"}, "device is cuda: trees are verified on CPUs alone"),
        ({"speculative_num_draft_tokens": 17}, "must be 2 to 16; got 17"),
        ({"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 9}, "be 2 to 8; got 9"),
    ],
)
def test_options_without_trees_are_refused_with_the_reason(options: dict, says: str) -> None:
    given = {"speculative_algorithm": NGRAM, "speculative_eagle_topk": 2} | options
    with pytest.raises(ConfigError, match=says):
        make_engine(**given)


def test_kernels_without_trees_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Chains(TorchKernels):
        trees = False

    monkeypatch.setattr(HashModel, "kernels", Chains())
    with pytest.raises(ConfigError, match="2, and Chains do not read the links of a tree"):
        make_engine(speculative_algorithm=NGRAM, speculative_eagle_topk=2)


class Faults:
    """Each breaks one thing that a tree needs."""

    @staticmethod
    def path_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner, "keep_path", lambda *given: None)

    @staticmethod
    def kept_inputs_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
        def keep_path(forward, pages, path):
            kept = [layer.clone() for layer in forward.kept]
            right(forward, pages, path)
            for layer, before in zip(forward.kept, kept, strict=True):
                layer.copy_(before)

        right = runner.keep_path
        monkeypatch.setattr(runner, "keep_path", keep_path)

    @staticmethod
    def kv_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
        def keep_path(forward, pages, path):
            before = pages.storage.clone()
            right(forward, pages, path)
            pages.storage.copy_(before)

        right = runner.keep_path
        monkeypatch.setattr(runner, "keep_path", keep_path)

    @staticmethod
    def links_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
        def forward(self, batch, states, pages):
            nodes, last = batch.nodes, getattr(self, "last_nodes", None)
            if nodes is not None:
                self.last_nodes = nodes.clone()
                if last is not None and last.shape == nodes.shape:
                    nodes.copy_(last)
            return right(self, batch, states, pages)

        right = HashModel.forward
        monkeypatch.setattr(HashModel, "forward", forward)

    @staticmethod
    def any_node_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
        def follow(nodes, drafts, real, at, token_ids):
            right = real[:, 1:] & (drafts == token_ids[:, None])
            found = right.any(dim=1)
            return found, torch.where(found, right.int().argmax(dim=1) + 1, at)

        monkeypatch.setattr(verification, "follow", follow)

    @staticmethod
    def places_for_depths(monkeypatch: pytest.MonkeyPatch) -> None:
        def depths_of(nodes):
            return torch.arange(nodes.shape[1]).expand(nodes.shape)

        monkeypatch.setattr(verification, "depths_of", depths_of)


@pytest.mark.parametrize("fault", [name for name in vars(Faults) if not name.startswith("_")])
def test_a_fault_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    rng = random.Random(5)
    specs = [RequestSpec(f"r{i}", random_prompt(rng, 20, 40), greedy(40)) for i in range(3)]
    plain, _ = answers(specs)
    sequences = [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs]

    def found() -> None:
        known = Known(sequences, 0.9, VOCAB, random.Random(7))
        options = proposing(known, "tree")
        events, _ = answers(
            specs, speculative_algorithm=NGRAM, speculative_num_draft_tokens=16, **options
        )
        assert_same(specs, plain, events)

    found()
    getattr(Faults, fault)(monkeypatch)
    with pytest.raises((AssertionError, IndexError, RuntimeError, InvariantError)):
        found()
