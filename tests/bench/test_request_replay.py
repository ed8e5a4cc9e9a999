"""Tests of what `baton replay` sends for a dump, and of how it reads dumps."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from baton.api.backend import GenerateRequest
from baton.bench.request_replay.bodies import FIRST_ID, Bodies
from baton.bench.request_replay.dumps import Dumped, read_dumps
from baton.core.errors import ConfigError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.router.dump.block_ids import BLOCK
from baton.router.dump.dump_options import DumpOptions
from baton.router.dump.request_dump import RequestDump
from baton.router.dump.request_record import DumpHeader, RequestRecord

VOCAB = 200


def dump_of(folder: Path, *requests: tuple[float, GenerateRequest], prompts: bool = False) -> None:
    """Write one router's dump; each request with its arrival."""
    dump = RequestDump.open(DumpOptions(folder, prompts), "toy", lambda: 0.0)
    for arrived, request in requests:
        dump.ended(request, arrived, 4, "length")
    dump.close()


def asked(prompt: list[int], salt: bytes = b"", **sampling: object) -> GenerateRequest:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    return GenerateRequest("0" * 32, tuple(prompt), params, cache_salt=salt)


def test_synthetic_prompts_share_what_the_recorded_ones_shared(tmp_path: Path) -> None:
    first = [7] * (2 * BLOCK + 10)
    dump_of(
        tmp_path,
        (0.5, asked(first, temperature=0.7, stop=("x",), max_tokens=99)),
        (0.0, asked(first[: 2 * BLOCK] + [9] * BLOCK)),
        (0.75, asked(first, salt=b"tenant")),
    )
    dumped = read_dumps(tmp_path)
    assert [each.at_s for each in dumped] == pytest.approx([0.0, 0.5, 0.75])
    bodies = Bodies(random.randrange(2**31), VOCAB)
    other, body, salted = map(bodies.body, dumped)
    assert len(body["prompt"]) == len(first) and len(other["prompt"]) == 3 * BLOCK
    assert body["prompt"][: 2 * BLOCK] == other["prompt"][: 2 * BLOCK]
    assert body["prompt"][2 * BLOCK :] != other["prompt"][2 * BLOCK :][:10]
    assert salted["prompt"][:BLOCK] != body["prompt"][:BLOCK]
    assert set(body["prompt"]) <= set(range(FIRST_ID, VOCAB)) and len(set(body["prompt"])) > 10
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (4, 4, True)
    assert body["temperature"] == pytest.approx(0.7) and "stop" not in body
    assert "cache_salt" not in body and "cache_salt" in salted
    again = Bodies(random.randrange(2**31), VOCAB).body(dumped[1])
    assert again["prompt"] != body["prompt"], "another replay hits nothing that this one left"


def test_recorded_prompts_are_sent_as_they_came(tmp_path: Path) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
    request = replace(
        asked([5, 6, 7], grammar=grammar, include_stop=True, seed=3), priority=2, routed_dp_rank=0
    )
    dump_of(tmp_path, (0.0, request), (1.0, asked([5], stop=("x",), top_k=4)), prompts=True)
    body, plain = map(Bodies(1, VOCAB).body, read_dumps(tmp_path))
    assert body["prompt"] == [5, 6, 7] and body["seed"] == 3 and body["priority"] == 2
    assert body["include_stop_str_in_output"] and body["routed_dp_rank"] == 0
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert plain["stop"] == ["x"] and plain["top_k"] == 4 and "min_tokens" not in plain


def test_dumps_of_several_routers_are_one_list_and_share_no_prompt(tmp_path: Path) -> None:
    for _ in range(2):
        dump_of(tmp_path, (0.0, asked([1] * BLOCK)))
    dumped = read_dumps(tmp_path)
    assert [each.file for each in dumped] == [0, 1] or [each.file for each in dumped] == [1, 0]
    one, other = map(Bodies(1, VOCAB).body, dumped)
    assert one["prompt"] != other["prompt"]


def test_a_last_line_that_was_cut_is_left_out_but_no_other(tmp_path: Path) -> None:
    dump_of(tmp_path, *((float(i), asked([i])) for i in range(3)))
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    file.write_text(whole[:-20])
    assert len(read_dumps(tmp_path)) == 2
    lines = whole.splitlines()
    lines[2] = lines[2][:-20]
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="line 3"):
        read_dumps(file)


def test_what_is_no_dump_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dump-requests"):
        read_dumps(tmp_path)
    for text in ("", "nonsense\n", '{"model": "m"}\n'):
        (tmp_path / "x.requests.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=r"x\.requests\.jsonl"):
            read_dumps(tmp_path)


def test_prompt_scores_are_asked_for_again() -> None:
    header = DumpHeader("toy", 0.0, BLOCK, True)
    sampling = {"prompt_logprobs_start": 0, "prompt_logprobs": 2, "logprobs": 2}
    record = RequestRecord(0.0, 5, 0, "cancelled", (0,), sampling)
    body = Bodies(1, VOCAB).body(Dumped(0.0, 0, header, record))
    assert body["echo"] and body["logprobs"] == 2
    assert body["max_tokens"] == 1, "a request that was cancelled early still read its prompt"
