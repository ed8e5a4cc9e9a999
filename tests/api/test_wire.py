"""This room's types and the contract's messages carry the same."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from baton.api.backend import Finished, FinishReason, Timings, TokenLogprob, Usage
from baton.api.errors import ApiError, ErrorCode
from baton.api.sampling import SamplingParams, nth_seed
from baton.api.wire import (
    finished_from_proto,
    finished_to_proto,
    logprob_from_proto,
    logprob_to_proto,
    sampling_from_options,
    sampling_to_proto,
)
from baton.proto import common_pb2, inference_pb2
from baton.text.grammar import Grammar, GrammarKind

GIVEN = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.25,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.75,
    "seed": 2**64 - 1,
    "stop_token_ids": (3, 4),
    "stop": ("a", "b"),
    "include_stop": True,
    "ignore_eos": True,
    "min_tokens": 0,
    "max_tokens": 9,
    "logprobs": 0,
    "prompt_logprobs_start": 0,
    "prompt_logprobs": 3,
    "logprob_token_ids": (9, 0),
    "grammar": Grammar(GrammarKind.REGEX, "a+"),
}
MESSAGE = GIVEN | {"grammar": common_pb2.Grammar(kind="regex", text="a+")}


def test_every_option_arrives_and_goes_on() -> None:
    params = sampling_from_options(inference_pb2.SampleOptions(**MESSAGE))
    assert params == SamplingParams(**GIVEN)
    assert set(GIVEN) == {field.name for field in fields(SamplingParams)}
    message = sampling_to_proto(params, seed=GIVEN["seed"])
    assert message == common_pb2.SamplingParams(**MESSAGE)


def test_options_left_out_take_the_defaults_of_the_contract() -> None:
    assert sampling_from_options(inference_pb2.SampleOptions()) == SamplingParams()


def test_a_tiny_temperature_and_an_off_top_k_have_one_spelling_on_the_wire() -> None:
    message = sampling_to_proto(SamplingParams(temperature=1e-30, top_k=-1), seed=1)
    assert (message.temperature, message.top_k) == (0.0, 0)


micros = st.integers(0, 2**40)
counts = st.integers(0, 2**31 - 1)


@given(
    reason=st.sampled_from(FinishReason),
    stop_id=st.none() | counts,
    cut=counts,
    usage=st.builds(Usage, counts, counts, counts),
    timings=st.builds(Timings, **{field.name: micros for field in fields(Timings)}),
)
def test_a_finish_survives_the_wire(
    reason: FinishReason, stop_id: int | None, cut: int, usage: Usage, timings: Timings
) -> None:
    finished = Finished(reason, stop_id, "stop", cut, usage, timings)
    assert finished_from_proto(finished_to_proto(finished)) == finished


def test_a_finishs_error_survives_the_wire() -> None:
    failed = Finished(FinishReason.ERROR, error=ApiError(ErrorCode.DATA_LOSS, "bad sum"))
    back = finished_from_proto(finished_to_proto(failed))
    assert back.error is not None
    assert (back.error.code, back.error.message) == (ErrorCode.DATA_LOSS, "bad sum")


def test_no_log_probability_is_not_a_log_probability_of_zero() -> None:
    for entry in (TokenLogprob(5, None), TokenLogprob(5, 0.0), TokenLogprob(5, -1.0, (6,), (-2,))):
        assert logprob_from_proto(logprob_to_proto(entry)) == entry


def test_the_answers_of_one_request_have_seeds_of_their_own() -> None:
    seeds = [nth_seed(1234, i) for i in range(100)]
    assert seeds[0] == 1234
    assert len(set(seeds)) == 100
    assert seeds == [nth_seed(1234, i) for i in range(100)]
    assert all(0 <= seed < 2**64 for seed in seeds if seed is not None)
    assert nth_seed(None, 3) is None
