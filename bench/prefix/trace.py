"""Published request traces: a JSON object a line, prompts as hash ids of 512-token blocks."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from baton.engine.layout.token_key import TOKEN_BYTES

BLOCK = 512  # tokens that one hash id stands for
VOCABULARY = 32_000


@dataclass(frozen=True)
class TraceRequest:
    """One request. timestamp: milliseconds from the trace's start; lengths in tokens."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """Read the first `limit` requests, or all.

    Raises click.ClickException that names a bad line.
    """
    requests: list[TraceRequest] = []
    with path.open() as lines:
        for number, line in enumerate(lines, start=1):
            if limit is not None and len(requests) == limit:
                break
            try:
                row = json.loads(line)
                hashes = tuple(row["hash_ids"])
                sizes = (row["timestamp"], row["input_length"], row["output_length"])
            except (ValueError, KeyError, TypeError) as error:
                raise click.ClickException(
                    f"{path}, line {number}: {error!r}; expected an object with timestamp, "
                    "input_length, output_length and hash_ids"
                ) from error
            requests.append(TraceRequest(*sizes, hashes))
    return requests


class TokenRuns:
    """Token ids for hash ids: an id always gives the same 512 tokens for the same seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._runs: dict[int, bytes] = {}

    def key(self, request: TraceRequest) -> bytes:
        """Return a prompt as the prefix cache's key (int32 bytes), cut to the input length."""
        return b"".join(map(self._run, request.hash_ids))[: request.input_length * TOKEN_BYTES]

    def keys(self, requests: list[TraceRequest]) -> Iterator[bytes]:
        return map(self.key, requests)

    def _run(self, hash_id: int) -> bytes:
        run = self._runs.get(hash_id)
        if run is None:
            drawn = np.random.default_rng((self._seed, hash_id)).integers(0, VOCABULARY, BLOCK)
            run = self._runs[hash_id] = drawn.astype(np.int32).tobytes()
        return run
