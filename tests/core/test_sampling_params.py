"""The limits of every sampling parameter, as the dataclass itself states them."""

from typing import Any

import pytest
from sampling_limits import boundary_values, together_with

from baton.core.errors import RequestError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.limits import float32
from baton.core.sampling_params import GREEDY_BELOW, SamplingParams


@pytest.mark.parametrize(("name", "value", "legal"), boundary_values())
def test_a_value_is_legal_up_to_its_limit_and_not_beyond(
    name: str, value: object, legal: bool
) -> None:
    given = {name: value} | together_with(name)
    if legal:
        SamplingParams(**given)  # type: ignore[arg-type]
        return
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)  # type: ignore[arg-type]
    assert caught.value.field == name
    assert caught.value.expected and caught.value.actual
    assert caught.value.expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "1"), ("temperature", True), ("max_tokens", 1.5), ("max_tokens", True),
        ("max_tokens", None), ("stop", "abc"), ("stop", (1,)), ("stop_token_ids", ("1",)),
        ("stop_token_ids", 5),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name


def test_equal_requests_are_spelled_alike() -> None:
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    assert SamplingParams(seed=-1) == SamplingParams(seed=2**64 - 1)
    assert SamplingParams(top_p=0.1) == SamplingParams(top_p=float32(0.1))
    below = SamplingParams(temperature=GREEDY_BELOW / 2)
    assert below == SamplingParams(temperature=0) and below.greedy
    assert not SamplingParams(temperature=GREEDY_BELOW * 2).greedy


def test_min_tokens_fits_max_tokens_and_leaves_a_grammar_alone() -> None:
    SamplingParams(min_tokens=3, max_tokens=3)
    with pytest.raises(RequestError, match="min_tokens is 4, more than max_tokens, 3"):
        SamplingParams(min_tokens=4, max_tokens=3)
    with pytest.raises(RequestError, match="the answer's regex says when it ends"):
        SamplingParams(min_tokens=1, grammar=Grammar(GrammarKind.REGEX, "a+"))


def test_a_seed_is_drawn_only_where_none_was_given() -> None:
    assert SamplingParams(seed=5).seeded() == SamplingParams(seed=5)
    drawn = {SamplingParams().seeded().seed for _ in range(20)}
    assert len(drawn) == 20 and None not in drawn


def test_another_seed_leaves_all_other_parameters_as_they_are() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5,
        "stop": ("a",),
        "logit_bias": {3: 1.5},
        "max_tokens": 7,
    }
    params = SamplingParams(**given)
    for seed in (9, None):
        assert params.with_seed(seed) == SamplingParams(**given, seed=seed)
    assert params.seed is None


def test_a_huge_value_is_shown_in_short() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(max_tokens=10**4000)
    assert len(str(caught.value)) < 200
