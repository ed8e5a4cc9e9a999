"""Agents' conversations as a request dump of Baton, and that as traces which AIPerf replays."""

import random
from pathlib import Path

from baton.bench.request_replay.dumps import read_dumps
from baton.bench.request_replay.weka import conversations, write_traces
from baton.router.dump.block_ids import BLOCK
from baton.router.dump.request_record import SUFFIX, DumpHeader, RequestRecord

TURNS = 5  # of an agent
_COMMON = 512 // BLOCK  # blocks with which every agent begins: tools and a system message
_OUTPUT = 24  # tokens of an answer
_TURN_S, _MOST_THOUGHT_S = 0.5, 0.4


def traces_of_agents(folder: Path, model: str, agents: int, seed: int = 1) -> Path:
    """Write traces of so many agents to a new folder, and return it."""
    dump = folder.with_suffix(SUFFIX)
    records = _records(agents, random.Random(seed))
    header = DumpHeader(model, 0.0, BLOCK, redacted=True)
    dump.write_text(header.line() + "".join(record.line() for record in records))
    found = conversations(read_dumps(dump))
    assert [len(each) for each in found] == [TURNS] * agents
    write_traces(folder, found)
    return folder


def _records(agents: int, rng: random.Random) -> list[RequestRecord]:
    """Return the requests of the agents, by arrival."""
    new = iter(range(_COMMON, 1 << 30))
    found: list[RequestRecord] = []
    for _ in range(agents):
        at, blocks = rng.uniform(0, _TURN_S), list(range(_COMMON))
        for _ in range(TURNS):
            blocks += [next(new) for _ in range(rng.randint(2, 256 // BLOCK))]
            tokens = BLOCK * len(blocks) - rng.randrange(BLOCK)
            found.append(RequestRecord(at, tokens, _OUTPUT, "length", tuple(blocks), {}))
            del blocks[tokens // BLOCK :]  # a block that was not whole is another one when it is
            at += _TURN_S + rng.uniform(0, _MOST_THOUGHT_S)
    return sorted(found, key=lambda record: record.arrived_s)
