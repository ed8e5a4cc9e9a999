"""Trees of drafts that several ranks verify: the answers are those of plain decoding."""

import random
from dataclasses import replace

import pytest
from engine.engines import assert_clean
from engine.proposers import Known, KnownOnDevice, KnownTree
from engine.test_ranks import options
from engine.test_ranks_drafts import IN_SUITE, LENGTHS, STEPS, turns
from oracle.reference import Oracle
from oracle.specs import SPECS

from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.proposer import Proposers


@pytest.mark.parametrize(("name", "ranks"), IN_SUITE)
def test_turns_and_branches_with_trees_get_the_tokens_of_transformers(
    oracle: Oracle, name: str, ranks: int, seeded: random.Random
) -> None:
    """The other ranks have the links of each tree, and keep the paths that the leader accepts."""
    folder, vocab = oracle.checkpoint(name), SPECS[name].config["vocab_size"]
    firsts = [tuple(seeded.randrange(3, vocab) for _ in range(length)) for length in LENGTHS]
    more = tuple(seeded.randrange(3, vocab) for _ in range(20))
    plain = Engine.load(options(folder))
    expected = turns(plain, firsts, more)
    plain.close()
    sequences = [(*asked, *output.token_ids) for asked, output in expected]
    known = Known(sequences, 0.9, vocab, seeded)
    config = replace(
        options(folder),
        tp=ranks,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=seeded.choice([5, 8, 16]),
        speculative_eagle_topk=3,
        speculative_num_steps=4,
    )
    tree = KnownTree(known)
    proposers = Proposers(known, KnownOnDevice(known), tree=tree)
    engine = Engine(config, load_model(config), None, proposers=proposers)
    try:
        found = turns(engine, firsts, more)
        assert_clean(engine)
        assert not engine._runner.rank_findings()
        assert tree.branched and engine.counters.draft_tokens_accepted
    finally:
        engine.close()
    prompts = [asked for asked, _ in found]
    oracle.assert_all_greedy(folder, prompts, [o.token_ids for _, o in found], STEPS)
