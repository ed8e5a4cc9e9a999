"""Requests to one rank that wait to be sent at the same time, as one message."""

from collections.abc import Iterator, Sequence

from baton.proto.worker_pb2 import RouterMessage, StartRequests

JOINS_MINOR = 2
"""The first minor version of the protocol whose ranks read `StartRequests`."""
MOST_TOKENS = 1 << 15
"""Tokens of one message's prompts and earlier answers: more would hold the event loop for long. A
request with more of them is sent by itself."""


def join_starts(messages: Sequence[RouterMessage]) -> Iterator[RouterMessage]:
    """Yield the messages in their order, with neighbouring StartRequests in one.

    A write costs router and rank about as much for one request as for several.
    """
    run: list[RouterMessage] = []
    tokens = 0
    for message in messages:
        starts = message.HasField("start")
        more = len(message.start.prompt_ids) + len(message.start.output_ids) if starts else 0
        if run and (not starts or tokens + more > MOST_TOKENS):
            yield _joined(run)
            run, tokens = [], 0
        if starts:
            run.append(message)
            tokens += more
        else:
            yield message
    if run:
        yield _joined(run)


def _joined(run: Sequence[RouterMessage]) -> RouterMessage:
    if len(run) == 1:
        return run[0]
    return RouterMessage(starts=StartRequests(requests=[each.start for each in run]))
