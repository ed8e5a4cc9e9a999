"""Tests of the prompt and output ids that the next attempt of a request is given."""

from array import array

import pytest

from baton.api.backend import GenerateRequest
from baton.core.cache_salt import SALT_BYTES, SHARED, make_salt
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import End, Finished, FinishReason
from baton.core.sampling_params import SamplingParams
from baton.router.request_times import RequestTimes
from baton.router.sessions.live_requests import LiveRequest
from baton.text.prefix_digest import PromptPrefixes


def live(*output_ids: int) -> LiveRequest:
    request = GenerateRequest("r", (5, 6, 7), SamplingParams())
    return LiveRequest(request, RequestTimes(0.0), output_ids=list(output_ids))


def test_the_next_prefill_reads_all_but_the_last_token_which_is_its_answer() -> None:
    assert list(live(8, 9).prefixes.token_ids) == [5, 6, 7, 8]
    assert list(live(8).prefixes.token_ids) == [5, 6, 7]
    assert list(live().prefixes.token_ids) == [5, 6, 7]


@pytest.mark.parametrize("output_ids", [(), (8,), (8, 9)])
def test_every_attempt_looks_under_the_salt_of_its_request(output_ids: tuple[int, ...]) -> None:
    salts = [make_salt("ada"), make_salt("bob"), SHARED]
    digests = set()
    for salt in salts:
        request = GenerateRequest("r", tuple(range(9)), SamplingParams(), cache_salt=salt)
        attempt = LiveRequest(request, RequestTimes(0.0), output_ids=list(output_ids))
        read = [*range(9), *output_ids[:-1]]
        assert attempt.prefixes.digests([8]) == PromptPrefixes(array("I", read), salt).digests([8])
        digests.update(attempt.prefixes.digests([8]))
    assert len(digests) == len(salts)


def test_all_ids_are_the_prompt_and_what_the_client_has() -> None:
    assert list(live(8, 9).all_ids) == [5, 6, 7, 8, 9]


def test_every_attempt_has_the_seed_that_the_first_one_drew() -> None:
    request = live()
    seeds = {request.next_attempt([], None).start.sampling.seed for _ in range(3)}
    assert len(seeds) == 1
    assert live().next_attempt([], None).start.sampling.seed not in seeds


def test_every_attempt_has_the_prediction() -> None:
    request = GenerateRequest("r", (5, 6, 7), SamplingParams(), prediction_ids=(8, 9))
    live = LiveRequest(request, RequestTimes(0.0), output_ids=[8])
    starts = [live.next_attempt([], None).start for _ in range(2)]
    assert [list(start.prediction_ids) for start in starts] == [[8, 9]] * 2


def test_drafts_are_guessed_from_texts_of_the_same_key_and_salt_alone() -> None:
    """Whoever shares cached prefixes. Every attempt has the name of these texts."""
    salts = [make_salt("a"), make_salt("b"), b""]
    requests = [
        GenerateRequest("r", (5,), SamplingParams(), owner=owner, cache_salt=salt)
        for owner in ("ada", "bob", None)
        for salt in salts
    ]
    scopes = set()
    for request in requests:
        live = LiveRequest(request, RequestTimes(0.0))
        (scope,) = {live.next_attempt([], None).start.draft_scope for _ in range(2)}
        assert len(scope) == SALT_BYTES
        scopes.add(scope)
    assert len(scopes) == len(requests)


def test_an_attempt_that_was_given_back_counts_for_nothing() -> None:
    lost = ApiError(ErrorCode.UNAVAILABLE, "its rank was lost", origin="d0")
    event = Finished(End(FinishReason.ERROR), error=lost)
    request = live()
    for returned in (False, True, True, False):
        request.next_attempt([], None)
        assert request.may_continue(event, left=False)
        if returned:
            request.record_return("p0")
    request.next_attempt([], None)
    assert not request.may_continue(event, left=False), "the third that a rank has lost"
