"""SGLang's router before canned HTTP workers."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.bench.cluster.stream_client import RequestFailed
from baton.bench.contract import Peer
from baton.bench.router.http_worker import serve_http
from baton.bench.sessions.http_client import post_all
from baton.bench.sessions.processes import child

NAME = "sglang_router"
READY_S = 60.0
ASK_S = 30.0


def missing(python: Path) -> Peer | None:
    """Return why a Python cannot run the router; None: it can."""
    try:
        found = subprocess.run(
            [python, "-c", f"import {NAME}"], capture_output=True, text=True, timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"skipped": f"{python}: {error}"}
    if not found.returncode:
        return None
    why = (found.stderr.strip().splitlines() or ["it did not say why"])[-1]
    return {"skipped": f"{python}: {why}; pip install {NAME}, or name another --sglang-python"}


@contextmanager
def sglang_router(python: Path, step_s: float) -> Iterator[tuple[str, str, int]]:
    """Run the router before a prefill and a decode worker, whose streams have a token each `step_s`
    seconds. Yields its URL, the decode worker's, and its process id. Raises RequestFailed if it
    does not start.
    """
    with child(serve_http, (2, step_s)) as workers:
        prefill, decode = workers.first
        port, metrics = _free_port(), _free_port()
        command = [
            python, "-m", f"{NAME}.launch_router", "--host", "127.0.0.1", "--port", str(port),
            "--pd-disaggregation", "--prefill", prefill, "--decode", decode,
            "--prometheus-port", str(metrics), "--log-level", "error",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            _await_answer(url, process)
            yield url, decode, process.pid
        finally:
            process.terminate()
            try:
                process.wait(READY_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _await_answer(url: str, process: "subprocess.Popen[bytes]") -> None:
    body = json.dumps({"text": "x", "sampling_params": {"max_new_tokens": 1}}).encode()
    until = time.monotonic() + READY_S
    while True:
        try:
            post_all(f"{url}/generate", [body], 1)
            return
        except (RequestFailed, OSError) as error:
            if process.poll() is not None:
                raise RequestFailed(f"{NAME} ended with {process.returncode}") from error
            if time.monotonic() > until:
                raise RequestFailed(f"{NAME} did not answer in {READY_S:g} s: {error}") from error
        time.sleep(0.2)
