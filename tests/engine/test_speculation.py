"""Answers with drafts are those of plain decoding, token for token, in every path."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine.engines import (
    assert_clean,
    finish_of,
    greedy,
    hand_over,
    make_engine,
    random_prompt,
    run,
    step_or_fail,
    tokens_of,
)
from engine.hash_model import VOCAB, HashModel
from engine.proposers import BRANCHES, Known, RandomChoice, proposing
from engine.test_equivalence import random_specs
from engine.test_stops import COUNT, readable
from toy_tokenizer import byte_level

from baton.core.errors import ConfigError, InvariantError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.forward import runner, verification
from baton.engine.request.events import Event, RequestFinished, TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation import drafter
from baton.engine.speculation.step_costs import StepCosts
from baton.text.reasoned_grammar import behind_reasoning
from baton.text.reasoning import ReasoningFormat, ReasoningState
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

NGRAM = SpeculativeAlgorithm.NGRAM
THINKS = ReasoningFormat("<", "e")
REGEX_BEGUN = r"(ab|cd){0,6}[ac]?|(ab|cd){2,6}-([0-9]{0,9}|[0-9]{3,9}\|)"  # `|` is its end
# Probabilities that a draft is right: never, always, at random; and where it is guessed. Steps
# overlap where that is the device.
every_right = pytest.mark.parametrize(
    ("right", "side"),
    [
        (0.0, "device"),
        (0.5, "device"),
        (0.5, "host"),
        (0.9, "device"),
        (0.5, "texts"),
        (0.9, "texts"),
        (1.0, "device"),
        (0.9, "tree"),
        (1.0, "tree"),
    ],
)
some_right = pytest.mark.parametrize(
    ("right", "side"), [(0.5, "device"), (1.0, "host"), (1.0, "device"), (1.0, "tree")]
)


def answers(specs: Sequence[RequestSpec], **options: object) -> tuple[list[Event], Engine]:
    engine = make_engine(**options)  # type: ignore[arg-type]
    for spec in specs:
        engine.submit(spec)
    return run(engine), engine


def speculating(
    specs: Sequence[RequestSpec],
    plain: list[Event],
    right: float,
    side: str,
    rng: random.Random,
    **more,
) -> tuple[list[Event], Engine, Known]:
    """Answer the requests again, with drafts of the plain answers."""
    sequences = [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs]
    proposer = Known(sequences, right, VOCAB, rng)
    events, engine = answers(
        specs,
        speculative_algorithm=NGRAM,
        speculative_num_draft_tokens=rng.choice([5, 8, 16] if side == "tree" else [2, 4, 8]),
        **proposing(proposer, side),
        **more,
    )
    return events, engine, proposer


def assert_same(specs: Sequence[RequestSpec], plain: list[Event], found: list[Event]) -> None:
    """Compare tokens, their log probabilities, and the ends of answers."""
    for spec in specs:
        name = spec.request_id
        sampled = [
            [e for e in events if isinstance(e, TokenSampled) and e.request_id == name]
            for events in (plain, found)
        ]
        assert sampled[0] == sampled[1]
        ends = [finish_of(events, name) for events in (plain, found)]
        assert replace(ends[0], state_tokens=0) == replace(ends[1], state_tokens=0)


@every_right
def test_any_sampling_gives_the_tokens_of_plain_decoding(
    seeded: random.Random, right, side
) -> None:
    specs = random_specs(seeded, 12)
    options = {"max_running": seeded.randint(1, 6), "chunk": seeded.choice([7, 16, 64])}
    plain, _ = answers(specs, **options)
    found, engine, proposer = speculating(specs, plain, right, side, seeded, **options)
    assert_same(specs, plain, found)
    assert proposer.asked
    counted = engine.counters
    assert counted.draft_tokens_accepted <= counted.draft_tokens
    lengths = counted.accepted_length_tokens
    assert sum(lengths) == counted.draft_rows
    drafts_accepted = sum(drafts * count for drafts, count in enumerate(lengths))
    assert drafts_accepted == counted.draft_tokens_accepted
    if right == 1.0:
        ways = BRANCHES if side == "tree" else 1
        assert counted.draft_tokens_accepted > counted.draft_tokens // (2 * ways)
    if right == 0.0:
        assert counted.draft_tokens > counted.draft_tokens_accepted == 0


@every_right
def test_greedy_answers_take_fewer_steps_where_drafts_are_right(seeded, right, side) -> None:
    specs = [RequestSpec(f"r{i}", random_prompt(seeded), greedy(40)) for i in range(4)]
    plain, before = answers(specs)
    found, engine, _ = speculating(specs, plain, right, side, seeded)
    assert_same(specs, plain, found)
    if right == 1.0:
        assert engine.counters.steps < before.counters.steps * 0.7


@every_right
def test_snapshots_and_pages_left_behind_are_those_of_plain_decoding(seeded, right, side) -> None:
    """The next turn of each conversation resumes at the same depth, and gives the same tokens.
    The canary checks each slot and page that is read."""
    specs = [RequestSpec(f"r{i}", random_prompt(seeded, 20, 60), greedy(50)) for i in range(3)]
    options = {"canary": True, "cached_snapshots": 30}
    plain, before = answers(specs, **options)
    found, engine, _ = speculating(specs, plain, right, side, seeded, **options)
    assert_same(specs, plain, found)
    for spec in specs:
        ends = [finish_of(events, spec.request_id) for events in (plain, found)]
        assert ends[0].state_tokens == ends[1].state_tokens > 0
        more = (*spec.prompt_ids, *tokens_of(plain, spec.request_id), *random_prompt(seeded, 3, 9))
        again = RequestSpec(f"{spec.request_id}-again", more, greedy(9))
        before.submit(again)
        engine.submit(again)
        one, other = run(before), run(engine)
        assert_same([again], one, other)
        hits = [finish_of(events, again.request_id).usage.cached_tokens for events in (one, other)]
        assert hits[0] == hits[1] > 0


@every_right
def test_tiny_pools_and_preemption(seeded, right: float, side: str) -> None:
    specs = [RequestSpec(f"r{i}", random_prompt(seeded, 30, 36), greedy(40)) for i in range(8)]
    plain, _ = answers(specs)
    found, engine, _ = speculating(
        specs, plain, right, side, seeded, pages=12, max_running=4, canary=True, cached_snapshots=1
    )
    assert_same_tokens(specs, plain, found)
    assert engine.counters.preemptions


def assert_same_tokens(specs, plain: list[Event], found: list[Event]) -> None:
    for spec in specs:
        assert tokens_of(plain, spec.request_id) == tokens_of(found, spec.request_id)


@some_right
def test_an_answer_ends_inside_an_accepted_run(
    seeded: random.Random, right: float, side: str
) -> None:
    """It ends by a stop token, or by its length, wherever in the window that lies."""
    prompt = random_prompt(seeded)
    base = RequestSpec("base", prompt, greedy(40))
    plain, _ = answers([base])
    tokens = tokens_of(plain, "base")
    specs = []
    for cut in range(1, 30, 3):
        stop = SamplingParams(temperature=0.0, max_tokens=40, stop_token_ids=(tokens[cut],))
        specs.append(RequestSpec(f"stop{cut}", prompt, stop))
        specs.append(RequestSpec(f"length{cut}", prompt, greedy(cut)))
    plain, _ = answers(specs)
    sequences = [(*prompt, *tokens)]
    proposer = Known(sequences, right, VOCAB, seeded)
    found, engine = answers(
        specs,
        speculative_algorithm=NGRAM,
        speculative_num_draft_tokens=8,
        **proposing(proposer, side),
    )
    assert_same(specs, plain, found)
    assert engine.counters.draft_tokens_accepted
    assert len(proposer.forgotten) == len(specs)


@every_right
def test_stop_tokens_below_the_minimum_length_do_not_come(
    seeded: random.Random, right: float, side: str
) -> None:
    """The minimum may be anywhere in a window. Where steps overlap, the host plans a row without
    knowing whether it is past it."""
    prompt = random_prompt(seeded)
    plain, _ = answers([RequestSpec("free", prompt, greedy(40))])
    free = tokens_of(plain, "free")
    stops = tuple(set(free[2:30:5]))
    base = SamplingParams(temperature=0.0, max_tokens=40, stop_token_ids=stops)
    drawn = replace(base, temperature=1.0, seed=seeded.randrange(1 << 60))
    specs = [
        RequestSpec(f"{name}{least}", prompt, replace(sampling, min_tokens=least))
        for name, sampling in (("greedy", base), ("drawn", drawn))
        for least in range(0, 24, 3)
    ]
    plain, _ = answers(specs)
    found, engine, _ = speculating(specs, plain, right, side, seeded)
    assert_same(specs, plain, found)
    assert tokens_of(found, "greedy21")[:21] != free[:21]  # a token that stops would have come
    for spec in specs:
        assert len(tokens_of(found, spec.request_id)) >= spec.sampling.min_tokens
    assert engine.counters.draft_rows


@every_right
def test_a_more_urgent_request_takes_the_pages_of_one_with_drafts(
    seeded: random.Random, right: float, side: str
) -> None:
    specs = [
        RequestSpec("low", (0,) * 8, greedy(30), priority=-1),
        RequestSpec("high", (1,) * 8, greedy(30)),
    ]
    options = {"pages": 6, "max_running": 2, "chunk": 64, "canary": True}
    plain, _ = answers(specs)
    found, engine, _ = speculating(specs, plain, right, side, seeded, **options)
    assert_same_tokens(specs, plain, found)
    ended = [event.request_id for event in found if isinstance(event, RequestFinished)]
    assert ended == ["high", "low"]
    assert engine.counters.preemptions


def test_the_end_of_the_context_cuts_the_drafts(seeded: random.Random) -> None:
    spec = RequestSpec("r", random_prompt(seeded, 30, 40), greedy(1000))
    plain, _ = answers([spec], max_model_len=64)
    found, _, _ = speculating([spec], plain, 1.0, "device", seeded, max_model_len=64)
    assert_same([spec], plain, found)
    assert len(tokens_of(found, "r")) == 64 - len(spec.prompt_ids)


@every_right
def test_a_request_handed_over_goes_on_with_drafts(
    seeded: random.Random, right: float, side: str
) -> None:
    specs = [RequestSpec(f"r{i}", random_prompt(seeded, 20, 60), greedy(30)) for i in range(3)]
    plain, _ = answers(specs)
    sequences = [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs]
    source = make_engine()
    target = make_engine(
        tickets=4,
        canary=True,
        speculative_algorithm=NGRAM,
        **proposing(Known(sequences, right, VOCAB, seeded), side),
    )
    for spec in specs:
        held = replace(spec, hold=True)
        source.submit(held)
        hand_over(source, target, held, tuple(tokens_of(run(source), spec.request_id)))
    events = run(target)
    for spec in specs:
        whole = tokens_of(plain, spec.request_id)
        assert tokens_of(events, spec.request_id) == whole[1:]


@pytest.mark.parametrize("side", ["host", "device"])
def test_a_request_may_be_cancelled_while_its_drafts_are_verified(seeded, side: str) -> None:
    specs = [RequestSpec(f"r{i}", random_prompt(seeded), greedy(60)) for i in range(4)]
    plain, _ = answers(specs)
    sequences = [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs]
    engine = make_engine(
        speculative_algorithm=NGRAM,
        canary=True,
        **proposing(Known(sequences, 0.8, VOCAB, seeded), side),
    )
    for spec in specs:
        engine.submit(spec)
    events: list[Event] = []
    for number in range(1000):
        if not engine.has_work:
            break
        events += engine.plan_step()
        assert_clean(engine)
        if number == 6:
            engine.cancel("r1", "enough")
        events += engine.run_step()
        assert_clean(engine)
    for name in ("r0", "r2", "r3"):
        assert tokens_of(events, name) == tokens_of(plain, name)
    assert finish_of(events, "r1").error == "enough"


@pytest.mark.parametrize("side", ["host", "device"])
def test_a_step_that_fails_ends_its_requests_and_leaves_nothing(seeded, side: str) -> None:
    model = HashModel()
    specs = [RequestSpec(f"r{i}", random_prompt(seeded), greedy(40)) for i in range(3)]
    plain, _ = answers(specs)
    sequences = [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs]
    proposer = Known(sequences, 1.0, VOCAB, seeded)
    engine = make_engine(model, speculative_algorithm=NGRAM, **proposing(proposer, side))
    for spec in specs:
        engine.submit(spec)
    model.fail_on = {6}
    events: list[Event] = []
    while engine.has_work:
        events += step_or_fail(engine)
        assert_clean(engine)
    failed = [e for e in events if isinstance(e, RequestFinished) and e.error]
    assert failed
    again = [replace(spec, request_id=f"{spec.request_id}-again") for spec in specs]
    for spec in again:
        engine.submit(spec)
    events = run(engine)
    for spec in again:
        assert tokens_of(events, spec.request_id) == tokens_of(plain, spec.request_id[:2])


def test_ngram_finds_what_repeats(seeded: random.Random) -> None:
    """A model that only sees its last tokens repeats itself."""
    phrase = random_prompt(seeded, 6, 6)
    bias = SamplingParams(temperature=0.0, max_tokens=30, allowed_token_ids=(phrase[0],))
    spec = RequestSpec("r", phrase, bias)
    plain, before = answers([spec])
    found, engine = answers([spec], speculative_algorithm=NGRAM)
    assert_same([spec], plain, found)
    assert engine.counters.draft_tokens_accepted > 15
    assert engine.counters.steps < before.counters.steps / 2


@pytest.mark.parametrize("right", [0.5, 1.0])
@pytest.mark.parametrize("pages", [200, 16])
def test_rows_with_drafts_and_without_change_places(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch, pages: int, right: float
) -> None:
    """Some rows of each step are plain and some verify drafts, of any window."""
    specs = random_specs(seeded, 10)
    plain, _ = answers(specs)
    rng = random.Random(seeded.random())
    monkeypatch.setattr(drafter, "DraftChoice", lambda most, cuts, _: RandomChoice(most, rng))
    known = Known(
        [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs],
        right, VOCAB, seeded,
    )  # fmt: skip
    found, engine = answers(
        specs,
        pages=pages,
        canary=True,
        speculative_algorithm=SpeculativeAlgorithm.AUTO,
        speculative_num_draft_tokens=seeded.choice([4, 8]),
        **proposing(known, "device"),
    )
    assert_same_tokens(specs, plain, found)
    assert engine.counters.draft_tokens_accepted


def test_auto_verifies_drafts_where_they_pay(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that repeats itself has drafts, unless steps of several tokens cost too much; one
    that does not has none."""
    repeating = SamplingParams(temperature=0.0, max_tokens=120, allowed_token_ids=(5,))
    specs = [RequestSpec(f"r{i}", random_prompt(seeded, 9, 9), repeating) for i in range(2)]
    other = RequestSpec("other", random_prompt(seeded, 9, 9), greedy(120))
    plain, _ = answers([*specs, other])
    accepted = []
    for given, cost in ((specs, 1.2), (specs, 9.0), ([other], 1.2)):
        for known in ("ratio", "spent"):  # whatever else this machine does now
            monkeypatch.setattr(StepCosts, known, lambda *_, cost=cost: cost)
        found, engine = answers(given, speculative_algorithm=SpeculativeAlgorithm.AUTO)
        assert_same_tokens(given, plain, found)
        accepted.append(engine.counters.draft_tokens_accepted)
    assert accepted[0] > 60
    assert accepted[1:] == [0, 0]


def test_no_buffer_refuses() -> None:
    with pytest.raises(ConfigError, match="extra_buffer"):
        make_engine(speculative_algorithm=NGRAM, mamba_scheduler_strategy="no_buffer", page_size=1)


@pytest.mark.parametrize("tokens", [0, 1, 9, 16])
def test_other_windows_are_refused(tokens: int) -> None:
    with pytest.raises(ConfigError, match="must be 2 to 8"):
        make_engine(speculative_algorithm=NGRAM, speculative_num_draft_tokens=tokens)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level(), SpecialTokens())


@some_right
def test_stop_strings_inside_an_accepted_run(
    seeded, tokenizer: Tokenizer, right: float, side: str
) -> None:
    prompt, _, text = readable(seeded, tokenizer)
    specs = []
    for start in range(3, COUNT - 4):
        stop = SamplingParams(
            temperature=0.0, max_tokens=COUNT, ignore_eos=True, stop=(text[start : start + 3],)
        )
        specs.append(RequestSpec(f"r{start}", prompt, stop))
    whole = RequestSpec("whole", prompt, greedy(COUNT))
    base, _ = answers([whole])
    plain, _ = answers(specs, tokenizer=tokenizer)
    proposer = Known([(*prompt, *tokens_of(base, "whole"))], right, VOCAB, seeded)
    found, engine = answers(
        specs,
        tokenizer=tokenizer,
        speculative_algorithm=NGRAM,
        speculative_num_draft_tokens=8,
        **proposing(proposer, side),
    )
    assert_same(specs, plain, found)
    assert engine.counters.draft_tokens_accepted


@some_right
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammars_and_banned_words(
    seeded: random.Random, tokenizer: Tokenizer, right: float, side: str, temperature: float
) -> None:
    """Each draft has the mask of its own prefix."""
    grammar = Grammar(GrammarKind.REGEX, r"(ab|cd){2,6}-[0-9]{3,9}")
    base = SamplingParams(temperature=temperature, max_tokens=30, ignore_eos=True)
    samplings = [
        replace(base, grammar=grammar, seed=seeded.randrange(1 << 60)),
        replace(base, bad_words=("abc", "e", "12"), seed=seeded.randrange(1 << 60)),
        replace(base, grammar=grammar, bad_words=("dab",), seed=3),
        replace(
            base,
            temperature=1.0,
            grammar=behind_reasoning(grammar, THINKS, ReasoningState.OPEN, {}),
            logit_bias=tuple((token, 5.0) for token in tokenizer.encode(THINKS.end)),
            seed=seeded.randrange(1 << 60),
            max_tokens=60,
        ),
    ]
    specs = [
        RequestSpec(f"r{i}", random_prompt(seeded), samplings[i % len(samplings)]) for i in range(8)
    ]
    plain, _ = answers(specs, tokenizer=tokenizer)
    found, engine, _ = speculating(specs, plain, right, side, seeded, tokenizer=tokenizer)
    assert_same(specs, plain, found)
    assert engine.counters.draft_tokens_accepted
    for spec in specs[3::4]:
        thought, mark, answer = tokenizer.decode(tokens_of(found, spec.request_id)).partition("e")
        assert mark and re.fullmatch(REGEX_BEGUN, answer.strip()), (thought, answer)


class Faults:
    """Ways in which verification could be wrong, each of which some check must notice."""

    @staticmethod
    def cursor_twice(monkeypatch: pytest.MonkeyPatch) -> None:
        def sample_window(*given, **more):
            sampled, verified = verification.sample_window(*given, **more)
            plan, tables = given[2], given[5]
            tables.lengths.index_add_(0, plan.table_rows, verified.counts - 1)
            return sampled, verified

        monkeypatch.setattr(runner, "sample_window", sample_window)

    @staticmethod
    def commit_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HashModel, "commit", lambda *given: None)

    @staticmethod
    def commit_of_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
        def commit(self, batch, states, accepted):
            counts = (accepted.counts + 1).clamp(max=batch.window.tokens)
            right(self, batch, states, accepted._replace(counts=counts))

        right = HashModel.commit
        monkeypatch.setattr(HashModel, "commit", commit)

    @staticmethod
    def window_over_the_read_slot(monkeypatch: pytest.MonkeyPatch) -> None:
        def forward(self, batch, states, pages):
            logits = right(self, batch, states, pages)
            if batch.window is not None:
                read = batch.read_slots[: batch.decode_requests]
                states.conv[0][read, 0, -1] = batch.kept[0][:: batch.window.tokens, 0]
            return logits

        right = HashModel.forward
        monkeypatch.setattr(HashModel, "forward", forward)

    @staticmethod
    def penalty_of_the_wrong_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
        def sample(logits, draws, ends, tables, *more):
            before = tables.counts.clone()
            found = right(logits, draws, ends, tables, *more)
            if draws.score_targets is None and logits.shape[0] == draws.draws:
                tables.counts.copy_(before)
            return found

        right = verification.sample
        monkeypatch.setattr(verification, "sample", sample)

    @staticmethod
    def noise_of_the_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
        def sample(logits, draws, ends, *more):
            return right(logits, draws, ends * 0 + 7, *more)

        right = verification.sample
        monkeypatch.setattr(verification, "sample", sample)


@pytest.mark.parametrize("fault", [name for name in vars(Faults) if not name.startswith("_")])
def test_a_fault_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Tokens differ, or a check raises."""
    rng = random.Random(5)
    sampling = SamplingParams(
        temperature=1.0, seed=9, max_tokens=40, ignore_eos=True, frequency_penalty=1.5
    )
    specs = [RequestSpec(f"r{i}", random_prompt(rng, 20, 40), sampling) for i in range(3)]
    plain, _ = answers(specs)
    found, _, _ = speculating(specs, plain, 0.8, "device", rng)
    assert_same(specs, plain, found)
    getattr(Faults, fault)(monkeypatch)
    with pytest.raises((AssertionError, IndexError, RuntimeError, InvariantError)):
        found, _, _ = speculating(specs, plain, 0.8, "device", rng)
        assert_same(specs, plain, found)
