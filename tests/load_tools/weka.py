"""Traces of agents in the form of Weka's kv-cache-tester, which AIPerf and guidellm replay."""

import json
import random
from pathlib import Path

BLOCK = 64  # tokens that one hash id stands for
TURNS = 5  # of an agent
_TOOLS, _SYSTEM = 6, 2  # blocks with which every agent of a trace begins
_OUTPUT = 24  # tokens of an answer
_MOST_THOUGHT_S = 0.4


def write_traces(folder: Path, model: str, agents: int, seed: int = 1) -> Path:
    """Write one file an agent to a new folder, and return it. A turn's blocks begin with those of
    the turn before."""
    folder.mkdir()
    rng = random.Random(seed)
    for number in range(agents):
        trace = _trace(f"agent-{number}", model, rng)
        (folder / f"{number:03}.json").write_text(json.dumps(trace, indent=1))
    return folder


def _trace(name: str, model: str, rng: random.Random) -> dict[str, object]:
    requests: list[dict[str, object]] = []
    at, blocks = 0.0, list(range(_TOOLS + _SYSTEM))
    for turn in range(TURNS):
        blocks += range(blocks[-1] + 1, blocks[-1] + 1 + rng.randint(1, 3))
        thought = rng.uniform(0, _MOST_THOUGHT_S) if turn else 0.0
        at += thought
        requests.append(
            {
                "t": round(at, 3),
                "type": "s",
                "model": model,
                "in": BLOCK * len(blocks) - rng.randrange(BLOCK),
                "out": _OUTPUT,
                "hash_ids": list(blocks),
                "stop": "tool_use" if turn + 1 < TURNS else "end_turn",
                "api_time": 0.5,
                "think_time": round(thought, 3),
            }
        )
        at += 0.5
    return {
        "id": name,
        "models": [model],
        "block_size": BLOCK,
        "hash_id_scope": "local",
        "tool_tokens": BLOCK * _TOOLS,
        "system_tokens": BLOCK * _SYSTEM,
        "requests": requests,
    }
