"""The servers that tools measure: a router of canned ranks, and a small model."""

import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from load_tools.tool import Server

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.bench.sessions.chat_model import CONTEXT, VOCABULARY, write_chat_model
from baton.bench.sessions.rig import rig
from baton.core.metric_dialect import MetricDialect
from baton.core.telemetry_options import TelemetryOptions
from baton.deploy.certs.cluster_credentials import cluster_credentials

RANKS, STEP_S = 4, 0.02
START_S, STOP_S = 180.0, 60.0


@contextmanager
def canned(folder: Path) -> Iterator[Server]:
    """Yield a router whose ranks give each of their requests a token every `STEP_S` seconds."""
    model = write_chat_model(folder / "canned")
    told = TelemetryOptions(metric_aliases=tuple(MetricDialect))
    with (
        cluster_credentials(None) as credentials,
        rig(model, credentials, 1, RANKS, random.Random(1), telemetry=told) as up,
        up.ranks(RANKS, STEP_S, eager=True),
    ):
        yield Server(up.urls[0], model.name, model, [f"{up.urls[0]}/metrics"])


@contextmanager
def small(folder: Path) -> Iterator[Server]:
    """Yield `baton serve` of a small model of random weights, with a worker of each role."""
    model = folder / "small"
    words = {"max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY}
    write_checkpoint(model, GRANITE_SMALL | words)
    for path in write_chat_model(folder / "tokens").glob("tokenizer*.json"):
        shutil.copy(path, model)
    command = [
        str(Path(sys.executable).with_name("baton")), "serve", "--model", str(model),
        "--port", "0", "--grpc-port", "0", "--prefill", "1", "--decode", "1",
        "--memory-gb", "1", "--threads", "1", "--metric-aliases", "vllm,sglang",
    ]  # fmt: skip
    log = folder / "serve.log"
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        url = _address(process, log)
        pages = [f"{url}/metrics"] + [
            f"{url}/workers/{name}/metrics" for name in ("prefill-0", "decode-0")
        ]
        yield Server(url, model.name, model, pages)
    finally:
        process.terminate()
        process.wait(STOP_S)


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"^  HTTP  (\S+)", log.read_text(), re.MULTILINE):
            return found[1]
        time.sleep(0.2)  # in a script, not in a test
    raise SystemExit(f"baton serve did not start: {log.read_text()}")
