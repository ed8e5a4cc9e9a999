"""The metrics of draft tokens, by proposer and position."""

import random

from engine.engines import greedy, make_engine, random_prompt, run, tokens_of
from engine.hash_model import VOCAB
from engine.proposers import Known, KnownOnDevice
from prometheus_client import CollectorRegistry

from baton.core.drafts import DraftSource
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.worker.engine_counters import EngineCounters
from baton.worker.figures import totals_of

TOKENS = 41


def test_drafts_are_counted_by_proposer_and_position(seeded: random.Random) -> None:
    """The third draft of each window of four tokens is wrong."""
    spec = RequestSpec("r", random_prompt(seeded, 20, 20), greedy(TOKENS))
    engine = make_engine()
    engine.submit(spec)
    answer = tokens_of(run(engine), "r")
    known = Known([(*spec.prompt_ids, *answer)], 1.0, VOCAB)
    device = KnownOnDevice(known)
    propose = device.propose

    def third_wrong(*args):  # type: ignore[no-untyped-def]
        drafts, counts = propose(*args)
        drafts[:, 2:] = (drafts[:, 2:] + 1) % VOCAB
        return drafts, counts

    device.propose = third_wrong  # type: ignore[method-assign]
    engine = make_engine(
        guesser=device,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=4,
    )
    engine.submit(spec)
    assert tokens_of(run(engine), "r") == answer

    registry = CollectorRegistry()
    EngineCounters({"worker": "w"}, registry).update(engine.counters)

    def samples(name: str, proposer: DraftSource) -> list[float]:
        labels = {"worker": "w", "proposer": proposer.value}
        found = [
            registry.get_sample_value(
                f"baton_engine_drafts_{name}_total", labels | {"position": str(position)}
            )
            for position in range(16)
        ]
        assert found[15] is None  # no step has so many
        return [value for value in found if value is not None]

    proposed, accepted = (
        samples("proposed", DraftSource.NGRAM),
        samples("accepted", DraftSource.NGRAM),
    )
    assert len(proposed) == 15 and proposed[3:] == [0] * 12
    assert proposed[0] >= proposed[1] >= proposed[2] > 0
    assert accepted == [proposed[0], proposed[1], *[0] * 13]
    assert samples("proposed", DraftSource.MTP) == [0] * 15
    rows = engine.counters.draft_rows
    assert totals_of(engine.counters).accept_length == 1 + sum(accepted) / rows
