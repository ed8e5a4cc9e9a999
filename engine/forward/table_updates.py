"""The changes of request tables on their way to the device."""

from itertools import islice

import torch

from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.memory.request_tables import STOP_IDS, RequestTables
from baton.engine.memory.table_changes import TableEntries


def pack_changes(entries: TableEntries, pack: HostPack) -> None:
    """Put a step's changes of the request tables into `pack`."""
    pack.ints("entry_places", entries.places)
    pack.ints("entry_pages", entries.pages)
    pack.ints("lost_rows", entries.lost)
    begun = [history for _, history in entries.histories]
    pack.ints("begun_rows", [row for row, _ in entries.histories])
    pack.ints("begun_lengths", [len(history.tokens) // TOKEN_BYTES for history in begun])
    pack.ints("begun_prompts", [history.prompt for history in begun])
    for row, history in entries.histories:
        pack.int32s(f"tokens {row}", history.tokens)
        if history.stop_ids:
            # Repeated until the row is full: to rule a token out twice changes nothing.
            copies = -(-STOP_IDS // len(history.stop_ids))
            pack.ints(f"stops {row}", islice((*history.stop_ids,) * copies, STOP_IDS))


def apply_changes(entries: TableEntries, packed: DevicePack, tables: RequestTables) -> None:
    """Bring the request tables up to date, in the order of the stream."""
    if entries.places:
        tables.set_pages(packed.ints("entry_places"), packed.ints("entry_pages"))
    if entries.histories:
        lengths, prompts = packed.ints("begun_lengths"), packed.ints("begun_prompts")
        tables.begin_lengths(packed.ints("begun_rows"), lengths, prompts)
    if entries.lost:
        rows = packed.ints("lost_rows")
        tables.lengths.index_add_(0, rows, torch.ones_like(rows))
    for row, history in entries.histories:
        tokens = packed.int32s(f"tokens {row}")
        tables.begin(row, tokens)
        if history.counted:
            prompt = tokens[: history.prompt if history.prompt_counted else 0]
            tables.begin_counts(row, prompt, tokens[history.prompt :])
        if history.stop_ids:
            tables.begin_stops(row, packed.ints(f"stops {row}"))
