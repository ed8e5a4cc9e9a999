"""Values of core and the contract's messages carry the same."""

import math
import random
from dataclasses import fields
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from baton.core.drafts import NO_DRAFTS, DraftCount, DraftSource, DraftUsage
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, RequestError
from baton.core.finish import End, Finished, FinishReason, Timings, Usage
from baton.core.grammar import Grammar, GrammarKind
from baton.core.handoff_ids import HandoffId, TicketId
from baton.core.logprobs import PromptLogprobs, TokenLogprob
from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.convert import (
    finished_from_proto,
    finished_to_proto,
    handoff_from_proto,
    handoff_to_proto,
    logprob_from_proto,
    logprob_to_proto,
    prompt_logprobs_from_proto,
    prompt_logprobs_to_proto,
    reason_from_proto,
    reason_to_proto,
    sampling_from_proto,
    sampling_to_proto,
    ticket_from_proto,
    ticket_to_proto,
)

GIVEN: dict[str, Any] = {
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
    "logit_bias": {4: -0.5, 5: 100.0},
    "bad_words": ("c", "d e"),
    "allowed_token_ids": (4, 5),
    "stop_regex": ("a+b",),
}
MESSAGE = GIVEN | {"grammar": common_pb2.Grammar(kind="regex", text="a+")}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (SamplingParams, common_pb2.SamplingParams),
        (Grammar, common_pb2.Grammar),
        (TokenLogprob, common_pb2.TokenLogprob),
        (PromptLogprobs, common_pb2.PromptLogprobs),
        (Usage, common_pb2.Usage),
        (Timings, common_pb2.Timings),
        (DraftUsage, common_pb2.DraftUsage),
        (DraftCount, common_pb2.DraftCount),
    ],
)
def test_a_value_and_its_message_have_the_same_fields(value: type, message: type[Message]) -> None:
    assert {field.name for field in fields(value)} == set(message.DESCRIPTOR.fields_by_name)


def test_every_parameter_arrives_and_goes_on() -> None:
    assert set(GIVEN) == {field.name for field in fields(SamplingParams)}
    params = sampling_from_proto(common_pb2.SamplingParams(**MESSAGE))
    assert params == SamplingParams(**GIVEN)
    assert sampling_to_proto(params) == common_pb2.SamplingParams(**MESSAGE)


def test_parameters_left_out_have_their_defaults() -> None:
    assert sampling_from_proto(common_pb2.SamplingParams()) == SamplingParams()


def test_defaults_are_sent_so_that_a_receiver_with_others_samples_alike(
    seeded: random.Random,
) -> None:
    params = SamplingParams(seed=seeded.randrange(2**64))
    message = sampling_to_proto(params)
    assert message.HasField("max_tokens") and message.HasField("temperature")
    back = sampling_from_proto(message)
    assert back == params and back.logprobs is None and back.prompt_logprobs_start is None


def test_a_tiny_temperature_and_an_off_top_k_have_one_spelling_on_the_wire() -> None:
    message = sampling_to_proto(SamplingParams(temperature=1e-30, top_k=-1))
    assert (message.temperature, message.top_k) == (0.0, 0)


def test_an_absurd_value_is_refused_by_name() -> None:
    message = sampling_to_proto(SamplingParams())
    message.top_p = math.nan
    with pytest.raises(RequestError, match="top_p"):
        sampling_from_proto(message)


def test_an_unknown_kind_of_grammar_is_refused_with_those_that_are_known() -> None:
    message = common_pb2.SamplingParams(grammar=common_pb2.Grammar(kind="bnf", text="x"))
    with pytest.raises(RequestError, match="'bnf'; expected one of json_schema") as caught:
        sampling_from_proto(message)
    assert (caught.value.field, caught.value.actual) == ("grammar", "bnf")


def test_no_log_probability_is_not_a_log_probability_of_zero() -> None:
    for entry in (
        TokenLogprob(5, None),
        TokenLogprob(5, 0.0),
        TokenLogprob(5, -1.0, (6,), (-2.0,), (-3.0,)),
    ):
        assert logprob_from_proto(logprob_to_proto(entry)) == entry


def test_prompt_log_probabilities_keep_their_position() -> None:
    chunk = PromptLogprobs(7, (TokenLogprob(5, None), TokenLogprob(6, -0.5)))
    assert prompt_logprobs_from_proto(prompt_logprobs_to_proto(chunk)) == chunk


def test_every_reason_survives_the_wire_and_an_unknown_one_is_an_error() -> None:
    for reason in FinishReason:
        assert reason_from_proto(reason_to_proto(reason)) is reason
        assert common_pb2.FinishReason.Name(reason_to_proto(reason)) == reason.name
    unknown = common_pb2.FINISH_REASON_UNSPECIFIED
    assert reason_from_proto(unknown) is FinishReason.ERROR


micros = st.integers(0, 2**40)
counts = st.integers(0, 2**31 - 1)
proposers = st.sampled_from([*DraftSource, "a newer one"])
by_proposer = st.lists(st.builds(DraftCount, proposers, counts, counts)).map(tuple)
drafts = st.just(NO_DRAFTS) | st.builds(DraftUsage, st.integers(1, 2**31 - 1), by_proposer)


@given(
    reason=st.sampled_from(FinishReason),
    stop_id=st.none() | counts,
    cut=counts,
    usage=st.builds(Usage, counts, counts, counts, counts, counts, drafts),
    timings=st.builds(Timings, **{field.name: micros for field in fields(Timings)}),
)
def test_a_finish_survives_the_wire(
    reason: FinishReason, stop_id: int | None, cut: int, usage: Usage, timings: Timings
) -> None:
    finished = Finished(
        End(reason, stop_id, "stop", cut), usage, timings, synthetic_acceptance=cut / 2
    )
    back = finished_from_proto(finished_to_proto(finished))
    assert back == finished
    assert back.usage.drafts == usage.drafts


def test_a_finishs_error_survives_the_wire() -> None:
    failed = Finished(End(FinishReason.ERROR), error=ApiError(ErrorCode.DATA_LOSS, "bad sum"))
    back = finished_from_proto(finished_to_proto(failed))
    assert back.error is not None
    assert (back.error.code, back.error.message) == (ErrorCode.DATA_LOSS, "bad sum")


@given(name=st.builds(HandoffId, st.text(), counts), ticket=st.builds(TicketId, counts, counts))
def test_the_names_of_a_handoff_and_its_ticket_survive_the_wire(
    name: HandoffId, ticket: TicketId
) -> None:
    drained = handoff_pb2.Drained(**handoff_to_proto(name), **ticket_to_proto(ticket))
    assert handoff_from_proto(drained) == name
    assert ticket_from_proto(drained) == ticket


def test_a_cancel_without_a_ticket_has_zeros_for_it() -> None:
    cancel = handoff_pb2.CancelPrefill(**ticket_to_proto(None))
    assert cancel.SerializeToString() == b""
