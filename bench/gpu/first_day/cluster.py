"""A cluster on one GPU that serves the two example models, over HTTP.

A prefill and a decode worker have a part of the GPU each. A lost page, window or state shows as a
wrong answer: the one model keeps its facts in KV pages and windows, the other in SSM states.
"""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from baton.bench.gpu.parts import Part
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.demand.demand import NodePlacement
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from recall.language import END
from recall.questions import HELD_OUT, Question, held_out
from recall.story import LEARNT

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
_MODELS = (("recall", LEARNT), ("state_recall", ("recall",)))
_GPU_OF_EACH = 0.4
_AT_ONCE = 16
_ASK_S = 60.0


def cluster(part: Part) -> None:
    """Serve each model, ask it, and end its decode worker while it answers."""
    for name, tasks in _MODELS[:1] if part.dry else _MODELS:
        part.row(f"cluster: {name}", partial(_serve, name, tasks, part))


def _serve(name: str, tasks: tuple[str, ...], part: Part) -> None:
    model = EXAMPLES / name / "model"
    config = ClusterConfig(
        EngineConfig(model, device=part.device.type, memory_bytes=2 << 30),
        RouterConfig(model, prefill_here=0),
        placement=NodePlacement(gpus=None if part.dry else _GPU_OF_EACH),
    )
    began = time.monotonic()
    with Cluster(config) as served:
        part.add(f"{name}: up", f"{time.monotonic() - began:.1f} s")
        ask = partial(_answer, f"{served.http_url}/v1/completions")
        for which in ("first", "second"):
            _, took = ask(held_out(HELD_OUT + len(which), tasks[0], 64))
            names = ("ttft_us", "prefill_us", "network_us", "transfer_us", "e2e_us")
            told = ", ".join(f"{each[:-3]} {took.get(each, 0) / 1e3:.0f}" for each in names)
            part.add(f"{name}: {which} request, ms", told)
        count = 4 if part.dry else 48
        lengths = (64, 256) if part.dry else (64, 128, 256, 512)
        questions = [
            held_out(number, tasks[number % len(tasks)], lengths[number % len(lengths)])
            for number in range(count)
        ]
        first = _asked(name, "each question", ask, questions, part)
        again = _asked(name, "asked again, from the cache", ask, questions, part)
        for worker in served.router.server_info()["workers"]:
            devices, channels = worker["rank_devices"], worker["channels"]
            part.add(f"{name}: {worker['worker_id']}", " ".join(devices), beside=str(channels))
        part.add(f"{name}: both alike", "yes" if first == again else "NO", failed=first != again)
        if not part.dry:
            os.kill(served.pid("decode-0"), signal.SIGKILL)
            _asked(name, "with the decode worker killed", ask, questions[:_AT_ONCE], part)


def _asked(
    name: str,
    how: str,
    ask: Callable[[Question], tuple[str, dict[str, Any]]],
    questions: list[Question],
    part: Part,
) -> list[str]:
    """Ask questions at once, and tell how many answers are right."""
    with ThreadPoolExecutor(_AT_ONCE) as clients:
        answers = list(clients.map(ask, questions))
    right = sum(
        text.split() == [word for word in question.answer if word != END]
        for question, (text, _) in zip(questions, answers, strict=True)
    )
    ttft = median(timings.get("ttft_us", 0) for _, timings in answers) / 1e3
    moved = median(timings.get("prefill_to_decode_us", 0) for _, timings in answers) / 1e3
    part.add(f"{name}: {how}", f"{right} of {len(questions)}",
             beside=f"first token {ttft:.1f} ms, prefill to decode {moved:.1f} ms",
             failed=right < len(questions))  # fmt: skip
    return [text for text, _ in answers]


def _answer(url: str, question: Question) -> tuple[str, dict[str, Any]]:
    body = {"model": "model", "prompt": question.text, "max_tokens": 16, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=_ASK_S) as reply:
        told = json.load(reply)
    return told["choices"][0]["text"], told.get("timings") or {}
