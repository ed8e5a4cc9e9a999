"""Allowed tokens and banned words, from the first token on and through every interruption."""

import random
from dataclasses import replace

import pytest
import torch
import toy_tokenizer
from engine.engines import finish_of, greedy, make_engine, random_prompt, run, tokens_of
from engine.hash_model import VOCAB, HashModel, model_logits
from engine.test_equivalence import alone, disaggregate

from baton.core.error_codes import ErrorCode
from baton.core.errors import RequestError
from baton.core.finish import FinishReason
from baton.core.sampling_params import SamplingParams
from baton.engine.request.request import RequestSpec
from baton.text.token_rules import banned_sequences
from baton.text.tokenizer import Tokenizer

LETTERS = range(5, VOCAB)  # after the special tokens


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(toy_tokenizer.save_folder(tmp_path_factory.mktemp("toy")))


def naive(prompt: tuple[int, ...], count: int, banned: frozenset[tuple[int, ...]]) -> list[int]:
    """Greedy decoding that never completes a banned sequence, one plain loop."""
    model = HashModel()
    output: list[int] = []
    for _ in range(count):
        logits = model_logits(model, [*prompt, *output])
        for sequence in banned:
            start = len(output) - len(sequence) + 1
            if start >= 0 and tuple(output[start:]) == sequence[:-1] and sequence[-1] < VOCAB:
                logits[sequence[-1]] = -torch.inf
        output.append(int(logits.argmax()))
    return output


def words_in(tokens: list[int], tokenizer: Tokenizer, rng: random.Random) -> tuple[str, ...]:
    """Some words of one to three tokens that an answer says."""
    found = []
    for _ in range(6):
        start, size = rng.randrange(len(tokens) - 3), rng.randint(1, 3)
        piece = tokens[start : start + size]
        word = tokenizer.decode(piece)
        if all(token in LETTERS for token in piece) and "�" not in word and word.strip():
            found.append(word)
    return tuple(dict.fromkeys(found))


@pytest.mark.parametrize("overlap", [True, False])
def test_banned_words_are_those_of_a_plain_loop(
    seeded: random.Random, tokenizer: Tokenizer, overlap: bool
) -> None:
    engine = make_engine(tokenizer=tokenizer, max_running=6, overlap=overlap)
    specs = []
    for number in range(6):
        prompt = random_prompt(seeded)
        free = naive(prompt, 30, frozenset())
        words = words_in(free, tokenizer, seeded) or ("!",)
        specs.append(RequestSpec(str(number), prompt, greedy(30, bad_words=words)))
        engine.submit(specs[-1])
    events = run(engine)
    for spec in specs:
        banned = banned_sequences(tokenizer, spec.sampling.bad_words)
        tokens = tokens_of(events, spec.request_id)
        assert tokens == naive(spec.prompt_ids, 30, banned)


def ruled(rng: random.Random, tokenizer: Tokenizer, max_tokens: int) -> SamplingParams:
    words = [tokenizer.decode(rng.sample(LETTERS, rng.randint(1, 2))) for _ in range(20)]
    return SamplingParams(
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.getrandbits(64),
        bad_words=tuple(word for word in words if "�" not in word and word.strip()) or ("!",),
        allowed_token_ids=rng.choice([(), tuple(rng.sample(range(VOCAB), 40))]),
        logit_bias=((rng.randrange(VOCAB), 20.0),),
        stop_token_ids=(rng.randrange(VOCAB),),
        min_tokens=rng.choice([0, max_tokens // 2]),
        max_tokens=max_tokens,
        ignore_eos=True,
    )


def test_rules_hold_through_preemption_and_hand_over(
    seeded: random.Random, tokenizer: Tokenizer
) -> None:
    specs = [
        RequestSpec(str(n), random_prompt(seeded)[:40], ruled(seeded, tokenizer, 25))
        for n in range(8)
    ]
    expected = alone(specs, tokenizer=tokenizer)  # type: ignore[arg-type]
    small = make_engine(tokenizer=tokenizer, pages=14, max_running=6)
    for spec in specs:
        small.submit(spec)
    events = run(small)
    source = make_engine(tokenizer=tokenizer)
    target = make_engine(tokenizer=tokenizer, pages=60, tickets=8)
    handed = disaggregate(source, target, specs, seeded)
    for spec in specs:
        assert tokens_of(events, spec.request_id) == expected[spec.request_id]
        assert tokens_of(handed, spec.request_id) == expected[spec.request_id]


def test_an_answer_goes_on_from_any_of_its_tokens(
    seeded: random.Random, tokenizer: Tokenizer
) -> None:
    spec = RequestSpec("a", random_prompt(seeded), ruled(seeded, tokenizer, 20))
    (tokens,) = alone([spec], tokenizer=tokenizer).values()  # type: ignore[arg-type]
    for given in range(len(tokens)):
        engine = make_engine(tokenizer=tokenizer)
        engine.submit(replace(spec, output_ids=tuple(tokens[:given])))
        assert tokens_of(run(engine), "a") == tokens[given:]


def test_an_answer_that_has_no_next_token_fails_alone(tokenizer: Tokenizer) -> None:
    (letter,) = tokenizer.encode("b", add_special_tokens=False)
    engine = make_engine(tokenizer=tokenizer)
    engine.submit(
        RequestSpec("a", (1, 2), greedy(9, allowed_token_ids=(letter,), bad_words=("bb",)))
    )
    engine.submit(RequestSpec("b", (1, 2), greedy(9)))
    events = run(engine)
    assert tokens_of(events, "a") == [letter]
    end = finish_of(events, "a")
    assert end.end.reason is FinishReason.ERROR and "leave no token" in str(end.error)
    assert end.error_code is ErrorCode.INVALID_REQUEST
    assert len(tokens_of(events, "b")) == 9


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": (VOCAB,)}, "allowed_token_ids"),
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
        ({"stop_regex": ("(",)}, "stop_regex"),
        ({"bad_words": ("b",), "allowed_token_ids": (70,)}, "bad_words"),
        ({"allowed_token_ids": (9,), "stop_token_ids": (9,), "min_tokens": 2}, "allowed_token_ids"),
    ],
)
def test_what_cannot_be_is_refused(
    more: dict[str, object], field: str, tokenizer: Tokenizer
) -> None:
    if field == "bad_words":
        more = more | {"allowed_token_ids": tuple(tokenizer.encode("b", add_special_tokens=False))}
    engine = make_engine(tokenizer=tokenizer)
    with pytest.raises(RequestError) as error:
        engine.submit(RequestSpec("a", (1, 2), greedy(9, **more)))
    assert error.value.field == field


def test_words_and_expressions_need_a_tokenizer() -> None:
    for more in ({"bad_words": ("a",)}, {"stop_regex": ("a",)}):
        with pytest.raises(RequestError, match=r"needs? a tokenizer"):
            make_engine().submit(RequestSpec("a", (1, 2), greedy(9, **more)))
