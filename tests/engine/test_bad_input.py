"""Tests that the engine refuses a wrong request at once, and that the next request works."""

from collections.abc import Callable

import pytest
from engine.engines import assert_clean, finish_of, greedy, make_engine, run
from engine.hash_model import VOCAB, HashModel, hash_config

from baton.core.errors import RequestError, TooLargeError
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec

LONGEST = 64


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        (RequestSpec("a", (), greedy()), RequestError, "prompt is empty"),
        (RequestSpec("a", (1, VOCAB), greedy()), RequestError, r"prompt_ids\[1\] is 97"),
        (RequestSpec("a", (1, -2), greedy()), RequestError, r"prompt_ids\[1\] is -2"),
        (RequestSpec("a", (1,), greedy(), (VOCAB,)), RequestError, r"output_ids\[0\]"),
        (RequestSpec("a", (1,), greedy(1), (3, 4)), RequestError, "max_tokens is 1"),
        (RequestSpec("a", (1,) * LONGEST, greedy()), TooLargeError, "65 tokens"),
        (RequestSpec("a", (1,) * (LONGEST + 1), greedy(0)), TooLargeError, "65 tokens"),
        (RequestSpec("taken", (1,), greedy()), RequestError, "here already"),
    ],
)
def test_a_wrong_request_is_refused_and_the_next_one_works(
    spec: RequestSpec, error: type[RequestError], says: str
) -> None:
    engine = make_engine(HashModel(hash_config(max_model_len=LONGEST)))
    engine.submit(RequestSpec("taken", (1, 2), greedy(3)))
    with pytest.raises(error, match=says):
        engine.submit(spec)
    assert_clean(engine)
    engine.submit(RequestSpec("good", (1,) * (LONGEST - 1), greedy()))
    assert finish_of(run(engine), "good").usage.completion_tokens == 1


def test_a_prompt_as_long_as_the_context_may_be_scored() -> None:
    engine = make_engine(HashModel(hash_config(max_model_len=LONGEST)))
    engine.submit(RequestSpec("a", (1,) * LONGEST, greedy(0)))
    assert finish_of(run(engine), "a").error is None


def test_a_pool_too_small_for_the_models_context_shortens_it() -> None:
    engine = make_engine(pages=4)
    assert engine.status().max_model_len == 32
    with pytest.raises(TooLargeError, match="may have 32 here"):
        engine.submit(RequestSpec("a", (1,) * 32, greedy()))


@pytest.mark.parametrize(
    "ask",
    [
        lambda engine: engine.parked_state("a"),
        lambda engine: engine.release("a"),
        lambda engine: engine.parked_state("nobody"),
        lambda engine: engine.release("nobody"),
        lambda engine: engine.reserve("a", 10),
        lambda engine: engine.reserve("b", 0),
        lambda engine: engine.reserve("b", 10_000),
        lambda engine: engine.generate([(1, 2), ()], greedy()),
    ],
)
def test_a_wrong_question_changes_nothing(ask: Callable[[Engine], object]) -> None:
    engine = make_engine(tickets=1)
    engine.submit(RequestSpec("a", (1, 2, 3), greedy(5)))
    engine.step()
    before = engine.status()
    with pytest.raises(RequestError):
        ask(engine)
    assert engine.status() == before
    assert_clean(engine)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", -3.0),
        ("seed", 1 << 64),
        ("max_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", 1000),
        ("stop", ("",)),
    ],
)
def test_absurd_sampling_is_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
