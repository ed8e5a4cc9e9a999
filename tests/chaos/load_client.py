"""A load of completions, from a process of its own, so that its work is not that of a test's other
clients: `python load_client.py '{"host": …}'` prints an object of counts.

It imports nothing of the project and little else: a machine of two cores has to serve meanwhile.
"""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Spec:
    """A description of the load. Set by a test."""

    host: str
    port: int
    body: dict[str, Any]
    seconds: float
    at_once: int = 0  # requests that are under way all the time; or else
    per_second: float = 0.0  # requests that come, whatever becomes of those before
    key: str = ""  # API key
    patient: bool = False  # a refused one comes again after Retry-After


@dataclass
class Counts:
    """The fates of the requests that came within the time."""

    done: int = 0
    tokens: int = 0
    by_status: dict[str, int] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)  # of those that were answered
    waited_s: list[float] = field(default_factory=list)  # of these, at the router
    first_token_s: list[float] = field(default_factory=list)  # of these, to the first token
    retry_after_s: list[int] = field(default_factory=list)
    seconds: float = 0.0


def start_load(spec: Spec) -> "subprocess.Popen[str]":
    """Start the load of `spec`. Its output is for `counts_of`."""
    command = [sys.executable, __file__, json.dumps(asdict(spec))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def counts_of(load: "subprocess.Popen[str]", deadline_s: float) -> Counts:
    """Wait for the end of a load."""
    output, _ = load.communicate(timeout=deadline_s)
    assert load.returncode == 0
    return Counts(**json.loads(output))


class Load:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.counts = Counts()
        self.end = 0.0
        body = json.dumps(spec.body).encode()
        key = f"x-api-key: {spec.key}\r\n" if spec.key else ""
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {spec.host}\r\n{key}"
        self.request = (
            f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def run(self) -> Counts:
        begin = time.perf_counter()
        self.end = begin + self.spec.seconds
        tasks: list[asyncio.Task[float] | asyncio.Task[None]] = []
        if self.spec.at_once:
            tasks += [asyncio.create_task(self.again()) for _ in range(self.spec.at_once)]
        else:
            while (now := time.perf_counter()) < self.end:
                due = int((now - begin) * self.spec.per_second)
                tasks += [asyncio.create_task(self.one()) for _ in range(due - len(tasks))]
                await asyncio.sleep(0.01)  # until more requests are due
        await asyncio.sleep(max(0.0, self.end - time.perf_counter()))  # as long as was asked for
        self.counts.seconds = time.perf_counter() - begin
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self.counts

    async def again(self) -> None:
        while True:
            wait_s = await self.one()
            if self.spec.patient:
                await asyncio.sleep(wait_s)  # as Retry-After says

    async def one(self) -> float:
        """Send a request. Return when it says to come again, in seconds."""
        sent = time.perf_counter()
        connection = self.idle.pop() if self.idle else None
        if connection is None:
            connection = await asyncio.open_connection(self.spec.host, self.spec.port)
        reader, writer = connection
        writer.write(self.request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        lines = head.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            writer.close()
        else:
            self.idle.append(connection)
        status, counts = lines[0].split()[1], self.counts
        counts.by_status[status] = counts.by_status.get(status, 0) + 1
        retry = int(headers.get("retry-after", "0"))
        if retry:
            counts.retry_after_s.append(retry)
        if status == "200":
            reply = json.loads(body)
            counts.done += 1
            counts.tokens += reply["usage"]["completion_tokens"]
            counts.waited_s.append(reply["timings"]["router_queue_us"] / 1e6)
            counts.first_token_s.append(reply["timings"]["ttft_us"] / 1e6)
            counts.latencies_s.append(time.perf_counter() - sent)
        return float(retry)


if __name__ == "__main__":
    found = asyncio.run(Load(Spec(**json.loads(sys.argv[1]))).run())
    print(json.dumps(asdict(found)))
