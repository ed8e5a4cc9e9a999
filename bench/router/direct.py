"""Requests on a rank without a router between."""

import asyncio
import time
from collections.abc import Sequence

import uvloop

from baton.bench.sessions.http_client import DEADLINE_S, Replies
from baton.core.errors import PeerLostError
from baton.proto import worker_pb2_grpc
from baton.proto.common_pb2 import Hello, SamplingParams, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import RouterMessage, StartRequest
from baton.rpc.channel_options import SESSION_OPTIONS
from baton.rpc.credentials import Credentials


def ask_rank(
    rank: WorkerIdentity, credentials: Credentials, prompts: Sequence[Sequence[int]]
) -> Replies:
    """Send requests for one token, one after the other, on a session of this process. Raises
    PeerLostError if the rank ends it."""

    async def run() -> Replies:
        latencies = []
        began = time.perf_counter()
        async with (
            asyncio.timeout(DEADLINE_S),
            credentials.dial_worker(rank, SESSION_OPTIONS) as channel,
        ):
            call = worker_pb2_grpc.RankStub(channel).Session()
            ours = Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR)
            await call.write(RouterMessage(hello=ours))
            await call.read()
            for number, prompt in enumerate(prompts, 1):
                start = StartRequest(
                    request_id=f"{number:032x}", attempt=1, prompt_ids=prompt, handle=number,
                    sampling=SamplingParams(max_tokens=1),
                )  # fmt: skip
                sent = time.perf_counter()
                await call.write(RouterMessage(start=start))
                reply = await call.read()
                if not reply or not reply.requests or not reply.requests[0].HasField("finished"):
                    raise PeerLostError(f"rank {rank.worker_id} did not answer request {number}")
                latencies.append(time.perf_counter() - sent)
            call.cancel()
        return Replies(latencies, time.perf_counter() - began)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())
