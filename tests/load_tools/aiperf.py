"""NVIDIA's AIPerf: at a fixed rate, and replaying an agents' trace; its series of metrics."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from load_tools.tool import Load, Reported, Server, Tool, program
from load_tools.weka import TURNS, traces_of_agents

from baton.rpc.metric_aliases.alias_collector import ALIASES

NAMES = [alias.name for aliases in ALIASES.values() for alias in aliases]


def _common(server: Server, home: Path) -> list[str]:
    # Its tokenizer is loaded from a folder only while HF_HUB_OFFLINE is not set.
    return [
        program("aiperf", "aiperf"), "profile", "--url", server.url, "--model", server.model,
        "--tokenizer", str(server.folder), "--streaming", "--use-server-token-count",
        "--server-metrics", *server.metrics, "--server-metrics-formats", "json", "jsonl",
        "--no-gpu-telemetry", "--workers-max", "1", "--record-processors", "1",
        "--random-seed", "1", "--ui", "none", "--artifact-dir", str(home),
    ]  # fmt: skip


def _at_a_rate(server: Server, load: Load, home: Path, endpoint: str) -> list[str]:
    return [
        *_common(server, home), "--endpoint-type", endpoint,
        "--request-rate", str(load.rate), "--arrival-pattern", "constant",
        "--request-count", str(load.requests), "--isl", str(load.input_len), "--isl-stddev", "0",
        "--osl", str(load.output_len), "--osl-stddev", "0", "--extra-inputs", "ignore_eos:true",
    ]  # fmt: skip


def _replayed(server: Server, load: Load, home: Path) -> list[str]:
    traces = traces_of_agents(home / "traces", server.model, load.requests // TURNS)
    return [
        *_common(server, home), "--endpoint-type", "chat", "--custom-dataset-type", "weka_trace",
        "--input-file", str(traces), "--extra-inputs", "ignore_eos:true",
        "--request-rate", str(load.rate), "--request-count", str(load.requests),
        "--ignore-trace-delays",
    ]  # fmt: skip


def _read(home: Path) -> Reported:
    found: dict[str, Any] = json.loads((home / "profile_export_aiperf.json").read_text())
    return Reported(
        requests=int(found["request_count"]["avg"]),
        input_tokens=int(found["total_usage_prompt_tokens"]["avg"]),
        output_tokens=int(found["total_usage_completion_tokens"]["avg"]),
        ttft_ms=found["time_to_first_token"]["avg"],
        itl_ms=found["inter_token_latency"]["avg"],
    )


def _series(home: Path) -> list[str]:
    """Return the aliases that its series of the server's metrics do not have."""
    found = json.loads((home / "server_metrics_export.json").read_text())["metrics"]
    series = {name for name, metric in found.items() if metric["series"]}
    missing = [name for name in NAMES if name.removesuffix("_total") not in series]
    return [f"no series of {', '.join(missing)}"] if missing else []


AIPERF = Tool("aiperf", partial(_at_a_rate, endpoint="completions"), _read, {}, check=_series)
AIPERF_CHAT = Tool("aiperf-chat", partial(_at_a_rate, endpoint="chat"), _read, {}, check=_series)
AIPERF_WEKA = Tool("aiperf-weka", _replayed, _read, {}, check=_series)
