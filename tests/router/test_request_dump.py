"""Dumps of requests: what stands in them, what does not, and their bounds."""

import json
import random
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of
from hypothesis import given
from hypothesis import strategies as st
from router_neighbours import Cluster, random_ids

from baton.api.backend import GenerateRequest
from baton.core.errors import ConfigError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.core.supervised import ProcessSupervisor
from baton.proto.worker_pb2 import RequestTokens, StartRequest
from baton.router.dump import request_dump
from baton.router.dump.block_ids import BLOCK, BlockIds
from baton.router.dump.dump_options import DumpOptions
from baton.router.dump.request_dump import RequestDump
from baton.router.dump.request_record import RequestRecord, parse_header
from baton.router.server import RouterServer

SECRET = "a word that only this prompt has"


def three(start: StartRequest) -> Iterable[RequestTokens]:
    for i, token in enumerate((20, 21, 22)):
        yield tokens_of(start, [token], first_index=i, last=i == 2)


def records(folder: Path) -> list[RequestRecord]:
    (file,) = folder.iterdir()
    header, *lines = file.read_text().splitlines()
    parse_header(header)
    return [RequestRecord.parse(line) for line in lines]


async def served(folder: Path, dump: DumpOptions, *bodies: dict[str, Any]) -> None:
    """Send the bodies, one after the other, to a router that records them."""
    async with Cluster(folder, dump=dump) as cluster:
        await cluster.add(FakeWorker("p0"), FakeRank("d0", answer=three))
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            for body in bodies:
                reply = await http.post("/v1/completions", json=body)
                assert reply.status_code == 200, reply.text


async def test_a_redacted_dump_has_lengths_and_shared_beginnings_but_no_word(
    tmp_path: Path,
) -> None:
    rng = random.Random(random.randrange(1 << 32))
    ids = random_ids(rng, 3 * BLOCK)
    told: dict[str, Any] = {"temperature": 0.5, "max_tokens": 9, "priority": 3, "user": SECRET,
                            "metadata": {"a": SECRET}, "stop": [SECRET], "seed": 4242424242,
                            "cache_salt": SECRET}  # fmt: skip
    folder = tmp_path / "dump"
    await served(
        tmp_path,
        DumpOptions(folder),
        {"prompt": SECRET},
        {"prompt": ids},
        {"prompt": [*ids[: 2 * BLOCK], 7]},
        {"prompt": ids, **told},
    )
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    text = file.read_text()
    for word in (SECRET, "4242424242", "prompt_ids", "20,21,22", str(ids[0:2])[1:-1]):
        assert word not in text.replace(", ", ","), word
    plain, whole, shared, salted = records(folder)
    assert [r.prompt_tokens for r in (whole, shared)] == [3 * BLOCK, 2 * BLOCK + 1]
    assert whole.blocks[:2] == shared.blocks[:2] and whole.blocks[2] != shared.blocks[2]
    assert not {*plain.blocks} & {*whole.blocks}
    assert not {*salted.blocks} & {*whole.blocks} and (whole.salt, salted.salt) == (0, 1)
    assert {r.output_tokens for r in (plain, whole, shared, salted)} == {3}
    assert plain.arrived_s < whole.arrived_s < shared.arrived_s < salted.arrived_s
    assert salted.sampling == {"temperature": 0.5, "max_tokens": 9} and salted.priority == 3
    assert salted.lengths == {"stop": [len(SECRET)]} and whole.lengths == {}
    assert salted.outcome == "length"


async def test_prompts_are_recorded_where_the_operator_asks(tmp_path: Path) -> None:
    ids = random_ids(random.Random(random.randrange(1 << 32)), 10)
    folder = tmp_path / "dump"
    body = {"prompt": ids, "stop": ["x"], "seed": 5, "regex": "a+", "routed_dp_rank": 0,
            "user": "ada", "metadata": {"job": "7"}}  # fmt: skip
    await served(tmp_path, DumpOptions(folder, prompts=True), body)
    (record,) = records(folder)
    assert record.prompt_ids == tuple(ids) and record.routed_dp_rank == 0
    assert record.sampling["stop"] == ["x"] and record.sampling["seed"] == 5
    assert record.sampling["grammar"] == {"kind": "regex", "text": "a+"}
    assert record.labels == {"user": "ada", "metadata": '{"job":"7"}'}


async def test_a_cancelled_request_is_recorded_with_what_its_client_was_given(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "dump"
    async with Cluster(tmp_path, dump=DumpOptions(folder)) as cluster:
        await cluster.add(
            FakeWorker("p0"), FakeRank("d0", answer=lambda start: [tokens_of(start, [20, 21])])
        )
        call = cluster.generate([1, 2, 3], max_tokens=9)
        assert len((await call.read()).token_ids) == 2
        call.cancel()
        await cluster.until_active(0)
    (record,) = records(folder)
    assert (record.outcome, record.output_tokens) == ("cancelled", 2)


def request(prompt: list[int], **sampling: Any) -> GenerateRequest:
    return GenerateRequest("0" * 32, tuple(prompt), SamplingParams(**sampling))


def test_a_full_dump_ends_with_whole_lines(tmp_path: Path) -> None:
    dump = RequestDump.open(DumpOptions(tmp_path, max_bytes=1000), "toy", lambda: 0.0)
    for _ in range(50):
        dump.ended(request([1, 2, 3]), 0.0, 1, "stop")
    dump.close()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= 1000
    assert 3 <= len(records(tmp_path)) < 50


def test_requests_that_come_too_fast_are_counted_and_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    hash_blocks = BlockIds.of

    def slow(self: BlockIds, ids: Any, salt: bytes = b"") -> tuple[int, ...]:
        assert go_on.wait(DEADLINE_S)
        return hash_blocks(self, ids, salt)

    monkeypatch.setattr(request_dump, "MOST_WAITING", 4)
    monkeypatch.setattr(BlockIds, "of", slow)
    dump = RequestDump.open(DumpOptions(tmp_path), "toy", lambda: 0.0)
    for _ in range(20):
        dump.ended(request([1]), 0.0, 1, "stop")
    go_on.set()
    dump.close()
    assert dump.left_out >= 15 and len(records(tmp_path)) + dump.left_out == 20


async def test_a_folder_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = DumpOptions(tmp_path / "file" / "dump")
    with pytest.raises(ConfigError, match="cannot write a request dump"):
        await RouterServer(Cluster(tmp_path, dump=wrong).config, ProcessSupervisor()).start()


def test_grammars_are_told_by_kind_and_length_alone(tmp_path: Path) -> None:
    dump = RequestDump.open(DumpOptions(tmp_path), "toy", lambda: 0.0)
    dump.ended(request([1], grammar=Grammar(GrammarKind.REGEX, "abc")), 0.0, 0, "error")
    dump.close()
    (record,) = records(tmp_path)
    assert record.lengths == {"grammar": {"kind": "regex", "chars": 3}}
    assert "abc" not in next(tmp_path.iterdir()).read_text()


@given(st.lists(st.lists(st.integers(0, 1), max_size=3 * BLOCK), max_size=6))
def test_blocks_have_one_number_exactly_where_the_beginnings_are_equal(
    prompts: list[list[int]],
) -> None:
    ids = BlockIds()
    numbered = [ids.of(prompt) for prompt in prompts]
    for one, own in zip(prompts, numbered, strict=True):
        assert len(own) == -(-len(one) // BLOCK)
        for other, theirs in zip(prompts, numbered, strict=True):
            for at, (a, b) in enumerate(zip(own, theirs, strict=False)):
                end = (at + 1) * BLOCK
                assert (a == b) == (one[:end] == other[:end])


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"baton_dump": 2, "model": "m"}', "nonsense"])
def test_other_files_are_no_dumps(line: str) -> None:
    with pytest.raises(ConfigError):
        parse_header(line)
    with pytest.raises(ConfigError):
        RequestRecord.parse(json.dumps({"blocks": 3}) if line == "[]" else line)
