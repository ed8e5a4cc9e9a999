"""Traces in the form `weka_trace`: which requests are one conversation, and what is told."""

import json
import random
from pathlib import Path

from bench.test_request_replay import asked, dump_of
from click.testing import CliRunner

from baton.bench.request_replay.dumps import read_dumps
from baton.bench.request_replay.weka import conversations, weka
from baton.router.dump.block_ids import BLOCK


def test_turns_of_mixed_agents_are_told_apart_by_what_their_prompts_begin_with(
    tmp_path: Path,
) -> None:
    rng = random.Random(random.randrange(1 << 32))
    system = [1] * BLOCK
    turns: list[tuple[float, int, list[int]]] = []
    for agent in range(5):
        prompt, at = [*system, *rng.choices(range(9, 99), k=2 * BLOCK)], rng.random()
        for _ in range(4):
            turns.append((at, agent, list(prompt)))
            prompt += rng.choices(range(9, 99), k=rng.randint(1, 3 * BLOCK))
            at += rng.uniform(0.1, 1)
    dump_of(tmp_path, *((at, asked(prompt)) for at, _, prompt in turns))
    found = conversations(read_dumps(tmp_path))
    lengths = [[dumped.record.prompt_tokens for dumped in each] for each in found]
    by_agent = [[len(p) for _, agent, p in turns if agent == each] for each in range(5)]
    assert sorted(lengths) == sorted(by_agent)


def test_equal_prompts_and_those_of_another_salt_begin_anew(tmp_path: Path) -> None:
    prompt = [7] * (2 * BLOCK)
    longer = [*prompt, 8]
    dump_of(
        tmp_path,
        *((float(at), asked(prompt)) for at in range(3)),
        (3.0, asked(longer, salt=b"tenant")),
        (4.0, asked([5])),
        (5.0, asked([5, 6])),
        (6.0, asked(longer)),
    )
    assert [len(each) for each in conversations(read_dumps(tmp_path))] == [1, 1, 2, 1, 1, 1]


def test_the_command_writes_a_file_for_each_conversation(tmp_path: Path) -> None:
    prompt = [7] * (BLOCK + 10)
    (tmp_path / "dump").mkdir()
    dump_of(tmp_path / "dump", (0.5, asked(prompt)), (2.0, asked(prompt + [8] * BLOCK)))
    words = [str(tmp_path / "dump"), str(tmp_path / "traces")]
    said = CliRunner().invoke(weka, words, catch_exceptions=False)
    assert said.output.startswith("2 requests of 1 conversations are in ")
    (file,) = (tmp_path / "traces").iterdir()
    trace = json.loads(file.read_text())
    first, second = trace["requests"]
    assert (trace["block_size"], trace["models"], trace["hash_id_scope"]) == (
        BLOCK, ["toy"], "local"
    )  # fmt: skip
    assert (first["t"], second["t"]) == (0.0, 1.5)
    assert (first["in"], second["in"], first["out"]) == (BLOCK + 10, 2 * BLOCK + 10, 4)
    assert first["hash_ids"][0] == second["hash_ids"][0]
    assert (len(first["hash_ids"]), len(second["hash_ids"])) == (2, 3)
    again = CliRunner().invoke(weka, words)
    assert again.exit_code == 1 and "is not empty" in again.output
