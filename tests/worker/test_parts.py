"""The small parts that streams and messages are made of."""

import asyncio
import itertools
import json
import logging
import math
import random
from pathlib import Path

import pytest
from worker.cluster import DEADLINE_S

from baton.engine.errors import RequestError, TooLargeError
from baton.engine.events import Finished, FinishReason, TokenLogprob
from baton.engine.sampling_params import SamplingParams
from baton.proto import common_pb2
from baton.text.grammar import Grammar, GrammarKind
from baton.transfer.errors import ChecksumError, FingerprintError, TicketError
from baton.worker.convert import (
    finished_to_proto,
    logprob_to_proto,
    sampling_from_proto,
    sampling_to_proto,
)
from baton.worker.errors import PeerSilentError, WorkerError, error_of, make_error
from baton.worker.json_logs import JsonFormatter
from baton.worker.metrics import BUCKETS
from baton.worker.model_identity import weights_hash
from baton.worker.streams import Lease, Outbox, first_of


def test_sampling_travels_there_and_back(seeded: random.Random) -> None:
    params = SamplingParams(
        temperature=0.5, top_k=7, top_p=0.25, min_p=0.125, repetition_penalty=1.5,
        presence_penalty=-0.5, frequency_penalty=0.75, seed=seeded.randrange(2**64),
        stop_token_ids=(3, 9), stop=("a", "é"), include_stop=True, ignore_eos=True,
        max_tokens=9, logprobs=0, prompt_logprobs_start=0, prompt_logprobs=4,
        logprob_token_ids=(9, 0), grammar=Grammar(GrammarKind.REGEX, "a+"),
    )  # fmt: skip
    assert sampling_from_proto(sampling_to_proto(params)) == params
    off = SamplingParams()
    back = sampling_from_proto(sampling_to_proto(off))
    assert back == off and back.logprobs is None and back.prompt_logprobs_start is None


def test_an_absurd_value_is_refused_by_name() -> None:
    message = sampling_to_proto(SamplingParams())
    message.top_p = math.nan
    with pytest.raises(RequestError, match="top_p"):
        sampling_from_proto(message)


def test_a_first_prompt_token_has_no_logprob() -> None:
    assert not logprob_to_proto(TokenLogprob(3, None)).HasField("logprob")
    assert logprob_to_proto(TokenLogprob(3, 0.0)).HasField("logprob")


@pytest.mark.parametrize(
    ("reason", "code"), [(FinishReason.ERROR, "INTERNAL"), (FinishReason.ABORT, "CANCELLED")]
)
def test_an_end_that_is_no_answer_carries_its_error(reason: FinishReason, code: str) -> None:
    event = Finished("r", reason, 5, 2, 1, error="why")
    message = finished_to_proto(event, "d0")
    assert common_pb2.ErrorCode.Name(message.error.code) == code
    assert (message.error.message, message.error.origin) == ("why", "d0")
    assert message.usage.cached_tokens == 1


def test_what_was_raised_becomes_the_code_that_fits() -> None:
    carried = make_error(common_pb2.OVERLOADED, "p", "full")
    for raised, code in (
        (TooLargeError("x"), common_pb2.TOO_LARGE),
        (RequestError("x"), common_pb2.INVALID_REQUEST),
        (FingerprintError("x", "a", "b"), common_pb2.INCOMPATIBLE),
        (ChecksumError("x"), common_pb2.DATA_LOSS),
        (TicketError("x"), common_pb2.UNAVAILABLE),
        (PeerSilentError("x"), common_pb2.UNAVAILABLE),
        (WorkerError(carried), common_pb2.OVERLOADED),
        (ZeroDivisionError("x"), common_pb2.INTERNAL),
    ):
        assert error_of(raised, "d0").code == code
    assert error_of(FingerprintError("x", "a", "b"), "d0").actual == "b"


async def test_a_lease_ends_after_silence_and_beats_meanwhile() -> None:
    beats = []
    lease = Lease("p0", 0.1)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(PeerSilentError, match="p0 was silent"):
            await lease.watch(lambda: beats.append(1))
    assert len(beats) >= 4


async def test_a_peer_that_is_heard_keeps_its_lease() -> None:
    lease = Lease("p0", 0.1)
    watching = asyncio.ensure_future(lease.watch())
    for _ in range(15):
        await asyncio.sleep(0.02)
        lease.heard()
    assert not watching.done()
    watching.cancel()


async def test_the_first_part_to_end_ends_the_others() -> None:
    ended = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def broken() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await first_of(forever("a"), broken(), forever("b"))
    assert sorted(ended) == ["a", "b"]


async def test_who_reads_a_call_that_another_part_has_cancelled_does_not_hide_why() -> None:
    """grpc.aio says CancelledError to the reader: taken for our own end, nobody would try again."""

    async def late(lost: asyncio.Event) -> None:
        lost.set()
        raise TimeoutError("the write was late")

    async def reads(lost: asyncio.Event) -> None:
        await lost.wait()
        raise asyncio.CancelledError

    for _ in range(50):  # they end in one turn of the loop, in any order
        lost = asyncio.Event()
        with pytest.raises(TimeoutError, match="the write was late"):
            await first_of(reads(lost), late(lost))
    with pytest.raises(asyncio.InvalidStateError, match="cancelled"):
        await first_of(reads(lost), asyncio.sleep(DEADLINE_S))


async def test_an_outbox_keeps_its_order() -> None:
    outbox, written = Outbox[int](), []
    for number in range(5):
        outbox.put(number)

    async def write(number: int) -> None:
        await asyncio.sleep(0)
        written.append(number)

    draining = asyncio.ensure_future(outbox.drain(write))
    async with asyncio.timeout(DEADLINE_S):
        while len(written) < 5:
            await asyncio.sleep(0)
    assert written == list(range(5))
    draining.cancel()


def test_log_lines_are_json_with_what_extra_brought() -> None:
    record = logging.makeLogRecord(
        {"name": "baton.x", "levelname": "INFO", "msg": "moved %d", "args": (3,), "to": "writing"}
    )
    line = json.loads(JsonFormatter(worker="d0").format(record))
    assert line["message"] == "moved 3"
    assert (line["to"], line["worker"], line["level"]) == ("writing", "d0", "info")


def test_buckets_resolve_under_five_milliseconds() -> None:
    assert BUCKETS[0] == 1e-4
    assert sum(bucket < 5e-3 for bucket in BUCKETS) >= 6
    assert all(1.7 < b / a < 1.8 for a, b in itertools.pairwise(BUCKETS))


def test_weights_are_known_by_their_bytes_and_not_by_their_folder(tmp_path: Path) -> None:
    hashes = []
    for name, byte in (("a", 1), ("b", 1), ("c", 2)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes(200_000) + bytes([byte]))
        hashes.append(weights_hash(folder))
    assert hashes[0] == hashes[1] != hashes[2]
