"""The small parts that streams and messages are made of."""

import itertools
import json
import logging
from pathlib import Path

import pytest

from baton.core.error_codes import ErrorCode
from baton.core.finish import End, FinishReason, Usage
from baton.core.logs import JsonFormatter
from baton.engine.request.events import RequestFinished
from baton.proto import common_pb2
from baton.rpc.convert import finished_to_proto
from baton.worker.convert import finished_of
from baton.worker.metric_factory import BUCKETS
from baton.worker.model_identity import weights_hash


@pytest.mark.parametrize(
    ("reason", "code"), [(FinishReason.ERROR, "INTERNAL"), (FinishReason.ABORT, "CANCELLED")]
)
def test_an_end_that_is_no_answer_carries_its_error(reason: FinishReason, code: str) -> None:
    event = RequestFinished("r", End(reason), Usage(5, 2, 1), error="why")
    message = finished_to_proto(finished_of(event, "d0"))
    assert common_pb2.ErrorCode.Name(message.error.code) == code
    assert (message.error.message, message.error.origin) == ("why", "d0")
    assert message.usage.cached_tokens == 1


def test_an_answer_that_its_own_rules_end_says_whose_fault_it_is() -> None:
    event = RequestFinished(
        "r", End(FinishReason.ERROR), Usage(5), error="why", error_code=ErrorCode.INVALID_REQUEST
    )
    message = finished_to_proto(finished_of(event, "d0"))
    assert message.error.code == common_pb2.ErrorCode.INVALID_REQUEST


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
