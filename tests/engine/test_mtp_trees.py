"""Trees of drafts by multi-token prediction: their shapes, what they are made of, and answers that
are those of plain decoding, bit for bit.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from engine.engines import hand_over, run, tokens_of
from engine.test_mtp_drafts import (
    GRID,
    NEAR_TIE,
    answered,
    assert_no_padding_is_read,
    assert_same,
    both_dtypes,
    options,
    poisoned,
    random_prompt,
    random_sampling,
    requests,
    right_of,
    with_mtp,
)
from engine.test_oracle import load
from mtp_models import MtpCheckpoints
from torch import Tensor

from baton.core.errors import ConfigError
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.forward import runner
from baton.engine.memory.request_tables import RequestTables
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.speculation.mtp_tree import MtpTree, _Candidates, beam_widths, likeliest
from baton.engine.speculation.proposer import DecodingStep
from engine import test_mtp_drafts

FAMILIES = ("qwen3_next_moe", "qwen3_5_moe", "nemotron_moe", "deepseek3_grouped")

folder = test_mtp_drafts.folder


def with_trees(config: EngineConfig, topk: int, tokens: int, steps: int | None) -> EngineConfig:
    return replace(
        with_mtp(config, tokens), speculative_eagle_topk=topk, speculative_num_steps=steps
    )


class Tree(NamedTuple):
    """A tree behind a sequence: the tokens and links of its nodes."""

    tokens: tuple[int, ...]
    links: tuple[int, ...]

    def paths(self) -> list[tuple[int, ...]]:
        """The tokens from the first to each node."""
        return [
            tuple(t for i, t in enumerate(self.tokens) if link >> i + 1 & 1) for link in self.links
        ]


Trees = dict[tuple[int, ...], Tree]
"""Trees by the sequences that they are behind."""


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> Trees:
    """Record the trees of every engine from now on."""
    found: Trees = {}
    propose = MtpTree.propose_tree

    def recorded(
        self: MtpTree,
        tables: RequestTables,
        rows: Tensor,
        ends: Tensor,
        most: int,
        step: DecodingStep,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, links, counts = propose(self, tables, rows, ends, most, step)
        columns = rows.tolist(), ends.tolist(), counts.tolist(), tokens.tolist(), links.tolist()
        for row, end, count, mine, paths in zip(*columns, strict=True):
            if count:
                tree = Tree(tuple(mine[:count]), tuple(paths[:count]))
                found[tuple(tables.tokens[row, :end].tolist())] = tree
        return tokens, links, counts

    monkeypatch.setattr(MtpTree, "propose_tree", recorded)
    return found


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note, of each step that keeps paths, whether it has moved any node."""
    found: list[bool] = []
    keep = runner.keep_path

    def noted(forward, pages, path):
        found.append(bool((path != torch.arange(path.shape[1])).any()))
        keep(forward, pages, path)

    monkeypatch.setattr(runner, "keep_path", noted)
    return found


@pytest.mark.parametrize("nodes", range(1, 16))
@pytest.mark.parametrize("branches", range(2, 7))
def test_the_layer_runs_on_each_depth_and_on_no_more_tokens_than_nodes(
    nodes: int, branches: int
) -> None:
    for depths in range(1, nodes + 1):
        widths = beam_widths(nodes, branches, depths)
        assert len(widths) == depths and widths[0] == 1
        assert all(1 <= width <= branches for width in widths)
        assert sum(widths[1:]) <= nodes
        wider = [width < branches for width in widths[1:]]
        assert sum(widths[1:]) == nodes or all(not w for w in wider)


def test_a_tree_has_the_likeliest_candidates_and_what_they_follow(seeded: random.Random) -> None:
    rows, depths, most = 5, seeded.randint(1, 5), seeded.randint(1, 12)
    found: list[_Candidates] = []
    first, before = 0, [0]  # the number of the first of a depth, less one; those of the one before
    for _ in range(depths):
        count = seeded.randint(1, 8)
        parents = torch.tensor([[seeded.choice(before) for _ in range(count)] for _ in range(rows)])
        scores = torch.tensor([[-seeded.choice([0.0, 0.5, 1.0, 3.0]) for _ in range(count)]] * rows)
        whole = torch.cat([torch.zeros(rows, 1), *(each.scores for each in found)], dim=1)
        scores = scores + whole.gather(1, parents)
        scores[:, seeded.randrange(count)] = -torch.inf
        found.append(
            _Candidates(
                torch.tensor([[seeded.randrange(99) for _ in range(count)]] * rows), parents, scores
            )
        )
        before = list(range(first + 1, first + 1 + count))
        first += count
    wanted = torch.tensor([seeded.randint(0, most) for _ in range(rows)])
    tokens, links, counts = likeliest(found, wanted, most)
    assert tokens.shape == links.shape == (rows, most)
    every_token, every_parent, every_score = (
        torch.cat([getattr(each, name) for each in found], dim=1).tolist()
        for name in ("token_ids", "parents", "scores")
    )
    for row in range(rows):
        score = every_score[row]
        real = [i for i in range(len(score)) if score[i] > -torch.inf]
        best = sorted(real, key=lambda i: (-score[i], i))[: int(wanted[row])]
        node = {0: 0} | {i + 1: place for place, i in enumerate(sorted(best), 1)}
        assert counts[row] == len(best)
        links_of = {0: 1}
        for i in sorted(best):
            links_of[i + 1] = links_of[every_parent[row][i]] | 1 << node[i + 1]
            assert tokens[row, node[i + 1] - 1] == every_token[row][i]
            assert links[row, node[i + 1] - 1] == links_of[i + 1]


@both_dtypes
@pytest.mark.parametrize(
    ("topk", "tokens", "steps"), [(2, 5, None), (2, 8, 4), (4, 8, 2), (4, 16, 5), (3, 16, 15)]
)
def test_any_sampling_gives_the_bits_of_plain_decoding(
    folder: Path, dtype: torch.dtype, topk: int, tokens: int, steps: int | None, moved: list[bool]
) -> None:
    config = options(folder, dtype)
    specs = requests(random.Random(f"{topk} {tokens}"))
    plain = answered(poisoned(config), specs)
    engine = poisoned(with_trees(config, topk, tokens, steps))
    assert_same(specs, plain, answered(engine, specs))
    assert engine.counters.draft_tokens > right_of(engine) > 10
    assert any(moved)


@both_dtypes
@pytest.mark.parametrize("topk", [2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_families_give_the_bits_of_plain_decoding(
    mtp_checkpoints: MtpCheckpoints, folder: Path, dtype: torch.dtype, name: str, topk: int
) -> None:
    config = replace(options(folder, dtype), model=mtp_checkpoints.folder(name))
    specs = requests(random.Random(name))
    plain = answered(poisoned(config), specs)
    engine = poisoned(with_trees(config, topk, 8, 3))
    assert_same(specs, plain, answered(engine, specs))
    assert right_of(engine) > 10


@pytest.mark.parametrize("name", ["qwen3_next_moe", "deepseek3_grouped"])
def test_nodes_are_what_the_reference_puts_first_behind_their_paths(
    mtp_checkpoints: MtpCheckpoints, folder: Path, name: str, trees: Trees
) -> None:
    """Each token is among the first that the layer gives, in float64, behind its own path alone."""
    rng, topk = random.Random("reference"), 3
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    specs = [RequestSpec(f"r{n}", random_prompt(rng, n), greedy) for n in (2, 15, 33)]
    config = replace(options(folder), model=mtp_checkpoints.folder(name))
    answered(poisoned(with_trees(config, topk, 11, 4)), specs)
    whole = [(ids, tree) for ids, tree in trees.items() if len(tree.tokens) == 10]
    assert len(whole) >= len(specs)
    reference = mtp_checkpoints.reference(name)
    branched = 0
    for ids, tree in whole[:12]:
        paths = tree.paths()
        assert len(set(paths)) == len(paths) and max(map(len, paths)) <= 4
        assert {path[:-1] for path in paths} <= {(), *paths}
        branched += len({path[:1] for path in paths}) > 1
        for path in paths:
            if any(longer[: len(path)] == path for longer in paths if len(longer) > len(path)):
                continue  # a longer one has its nodes
            for logits, token in zip(reference.draft(ids, path[:-1]), path, strict=True):
                assert int((logits > logits[token] + NEAR_TIE).sum()) < topk
    assert branched


def test_a_tree_has_no_token_that_a_rule_forbids(folder: Path, trees: Trees) -> None:
    rng = random.Random("rules")
    specs = []
    for number, count in enumerate((1, 2, 3, 2)):
        sampling = replace(
            random_sampling(rng, count), max_tokens=30, temperature=number / 2, stop_token_ids=()
        )
        specs.append(RequestSpec(f"r{number}", random_prompt(rng, 20 + number), sampling))
    answered(poisoned(with_trees(options(folder), 4, 8, 3)), specs)
    prompts = {spec.prompt_ids: set(spec.sampling.allowed_token_ids or ()) for spec in specs}
    seen = 0
    for ids, tree in trees.items():
        rules = next(mine for prompt, mine in prompts.items() if ids[: len(prompt)] == prompt)
        assert set(tree.tokens) <= rules
        assert len(set(tree.paths())) == len(tree.tokens)
        seen += 1
    assert seen > len(specs)


@both_dtypes
def test_other_ways_to_a_prefix_give_the_same_answers(folder: Path, dtype: torch.dtype) -> None:
    """Prompts are cut beside others, go on from what is cached, and are handed over."""
    rng = random.Random(f"prefixes {dtype}")
    begin = random_prompt(rng, 2 * GRID)
    specs = [
        RequestSpec(
            f"r{number}",
            begin + random_prompt(rng, length),
            replace(random_sampling(rng, 2), max_tokens=40, stop_token_ids=()),
        )
        for number, length in enumerate((40, 90, 171, 1))
    ]
    config = replace(options(folder, dtype), chunked_prefill_size=GRID)
    plain = answered(poisoned(config), specs)
    tree = with_trees(config, 4, 8, 3)
    engine = poisoned(tree)
    assert_same(specs, plain, answered(engine, specs))
    before = engine.counters.state_hit_tokens
    again = [replace(spec, request_id=f"{spec.request_id}-again") for spec in specs]
    found = answered(engine, again)
    assert engine.counters.state_hit_tokens - before >= len(specs) * 2 * GRID
    source = poisoned(tree.for_prompts)
    for spec in specs:
        sent = replace(spec, request_id=f"{spec.request_id}-sent")
        source.submit(replace(sent, hold=True))
        found += run(source)
        hand_over(source, engine, sent, tuple(tokens_of(found, sent.request_id)))
        found += run(engine)
    for spec in specs:
        for way in ("again", "sent"):
            name = f"{spec.request_id}-{way}"
            assert tokens_of(found, name) == tokens_of(plain, spec.request_id), name


def preempting(folder: Path, **more: object) -> Engine:
    return load(
        folder,
        pages=18,
        mtp=True,
        speculative_algorithm=SpeculativeAlgorithm.MTP,
        speculative_eagle_topk=3,
        chunked_prefill_size=32,
        canary=True,
        **more,
    )


def test_what_lies_in_the_padding_slot_and_page_reaches_no_request(folder: Path) -> None:
    """Rows without room, preempted requests and padding of windows, with NaN in slot 0 and page 0
    before each step."""
    specs = requests(random.Random("padding"), (1, 3, 40, 60, 75, 90, 130, 20, 33))
    plain = answered(poisoned(options(folder)), specs)
    engine = preempting(folder, speculative_num_draft_tokens=16, overlap=False)

    assert_no_padding_is_read(engine, specs, plain)


def test_acceptance_that_is_drawn_is_of_chains(folder: Path) -> None:
    config = with_trees(options(folder), 2, 5, None)
    with pytest.raises(ConfigError, match="draws how much of a chain is kept"):
        Engine.load(replace(config, canary=False, speculative_synthetic_acceptance=2.0))
