"""A real Prometheus on loopback, with Baton's rules made faster, for tests."""

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kit.polling import until_asked, wait_until
from kit.ports import free_port
from objectives import Objectives
from prometheus_tools import tool
from windows import Windows
from write_rules import rules_files

START_S = 60.0
ANSWER_S = 30.0
POLL_S = 0.1


@dataclass(frozen=True)
class Sample:
    labels: Mapping[str, str]
    value: float


class Prometheus:
    """A running Prometheus. The dashboards' `$job` is the job `baton`."""

    def __init__(self, url: str, windows: Windows) -> None:
        self._url = url
        self._windows = windows

    def query(self, expr: str) -> list[Sample]:
        """Return the samples of an expression of PromQL now, those that are NaN left out."""
        return [sample for sample in self.raw(expr) if not math.isnan(sample.value)]

    def raw(self, expr: str) -> list[Sample]:
        """Return the samples of an expression of PromQL or of a dashboard now."""
        expr = expr.replace("$__rate_interval", self._windows("5m")).replace("$job", "baton")
        got = self._get("query", query=expr)["result"]
        return [Sample(each["metric"], float(each["value"][1])) for each in got]

    def value(self, expr: str) -> float:
        """Return the one sample of an expression; NaN while a scrape is missing."""
        found = self.query(expr)
        return found[0].value if len(found) == 1 else math.nan

    def series(self, expr: str, seconds: float, step: float) -> list[dict[str, Any]]:
        """Return what a graph of the last `seconds` would draw."""
        expr = expr.replace("$__rate_interval", self._windows("5m")).replace("$job", "baton")
        now = time.time()
        found = self._get("query_range", query=expr, start=now - seconds, end=now, step=step)
        return list(found["result"])

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = self._get("alerts")["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    async def until(self, true: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Wait until `true` returns True. Fails with `what` at the deadline."""
        await until_asked(true, lambda: what, deadline_s)

    async def until_firing(self, *names: str, deadline_s: float = 120.0) -> None:
        wanted = set(names)
        await self.until(lambda: wanted <= self.firing(), deadline_s, f"alerts {wanted}")

    async def until_over(self, *names: str, deadline_s: float = 240.0) -> None:
        wanted = set(names)
        what = f"the end of the alerts {wanted}"
        await self.until(lambda: not wanted & self.firing(), deadline_s, what)

    def _get(self, path: str, **fields: object) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_S) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{fields}: {error.read().decode()}") from error


@contextmanager
def prometheus(
    folder: Path,
    router: str,
    *,
    speed: float,
    interval_ms: int = 500,
    scheme: str = "http",  # of the list of targets, which names the scheme of each
    api_key: str = "",
    goals: Objectives | None = None,
) -> Iterator[Prometheus]:
    """Run a Prometheus in `folder` that scrapes the cluster of a router, `host:port`.

    speed: divides every length of time of the rules. api_key: one with the scope `metrics`.
    """
    windows = Windows(speed)
    for name, text in rules_files(windows, goals or Objectives()).items():
        (folder / name).write_text(text)
    access: dict[str, object] = {"tls_config": {"insecure_skip_verify": True}}
    if api_key:
        access["authorization"] = {"type": "Bearer", "credentials": api_key}
    discovery = {"url": f"{scheme}://{router}/prometheus/targets", "refresh_interval": "1s"}
    config = {
        "global": {
            "scrape_interval": f"{interval_ms}ms",
            "scrape_timeout": f"{interval_ms}ms",
            "evaluation_interval": f"{interval_ms}ms",
        },
        "rule_files": ["recording.yml", "alerts.yml"],
        "scrape_configs": [
            {
                "job_name": "baton",
                "http_sd_configs": [discovery | access],
                **access,
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
                "--query.lookback-delta=5s",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        _wait_ready(process, address, folder / "prometheus.log")
        yield Prometheus(f"http://{address}", windows)
    finally:
        process.kill()
        process.wait()


def _wait_ready(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    def answers() -> bool:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://{address}/-/ready", timeout=ANSWER_S),
        ):
            return True
        return process.poll() is not None

    wait_until(answers, lambda: log.read_text()[-3000:], START_S)
    assert process.poll() is None, f"Prometheus did not start:\n{log.read_text()[-3000:]}"
