"""`baton bench weka`: a request dump in the form `weka_trace`, which AIPerf and guidellm replay."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from baton.bench.request_replay.dumps import Dumped, read_dumps
from baton.core.errors import ConfigError


@click.command("weka")
@click.argument("dump", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def weka(dump: Path, folder: Path) -> None:
    """Write the requests of DUMP (a folder of `baton serve --dump-requests`, or one of its files)
    to FOLDER as traces of agents in the form `weka_trace`, one file a conversation.

    A request whose prompt begins with all whole blocks of an earlier one continues its
    conversation. Prompts are told as numbers of blocks: no texts and no token ids are written.
    """
    try:
        found = conversations(read_dumps(dump))
        write_traces(folder, found)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    count = sum(map(len, found))
    click.echo(f"{count} requests of {len(found)} conversations are in {folder}")


def conversations(requests: Sequence[Dumped]) -> list[list[Dumped]]:
    """Return the requests by conversation, each in the order of arrival.

    requests: by arrival.
    """
    found: list[list[Dumped]] = []
    newest: dict[tuple[int, int, tuple[int, ...]], list[Dumped]] = {}  # by the last whole blocks
    for dumped in requests:
        record = dumped.record
        whole = record.blocks[: record.prompt_tokens // dumped.header.block]
        begun: list[Dumped] | None = None
        for length in range(len(whole), 0, -1):
            begun = newest.get((dumped.file, record.salt, whole[:length]))
            if begun and begun[-1].record.prompt_tokens < record.prompt_tokens:
                newest.pop((dumped.file, record.salt, whole[:length]))
                break
            begun = None
        if begun is None:
            begun = []
            found.append(begun)
        begun.append(dumped)
        newest[dumped.file, record.salt, whole] = begun
    return found


def write_traces(folder: Path, conversations: Sequence[Sequence[Dumped]]) -> None:
    """Write a file for each conversation. Raises ConfigError for a folder that has files."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; expected a new folder, or an empty one")
    for number, conversation in enumerate(conversations):
        trace = _trace(f"conversation-{number}", conversation)
        (folder / f"{number:05}.json").write_text(json.dumps(trace))


def _trace(name: str, conversation: Sequence[Dumped]) -> dict[str, object]:
    first = conversation[0]
    model = first.header.model
    return {
        "id": name,
        "models": [model],
        "block_size": first.header.block,
        "hash_id_scope": "local",
        "requests": [
            {
                "t": round(dumped.at_s - first.at_s, 3),
                "type": "s",
                "model": model,
                "in": dumped.record.prompt_tokens,
                "out": max(1, dumped.record.output_tokens),
                "hash_ids": list(dumped.record.blocks),
            }
            for dumped in conversation
        ],
    }
