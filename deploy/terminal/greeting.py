"""The message of `baton serve` when the cluster is ready."""

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from baton.deploy.cluster.cluster import Cluster


def greet(console: Console, cluster: Cluster, seconds: float) -> None:
    """Print addresses, each role's memory plan, and a command to try.

    seconds: since the command.
    """
    info = cluster.router.server_info()
    parts = ", ".join(f"{part} {took:.1f} s" for part, took in cluster.seconds.items())
    console.print(f"[bold green]ready[/] after {seconds:.1f} s ({parts})", highlight=False)
    console.print(f"  HTTP  {cluster.http_url}", highlight=False)
    console.print(f"  gRPC  {cluster.grpc_address}", highlight=False)
    for worker in _one_a_role(info["workers"]):
        plan = "; ".join(f"{name} {value}" for name, value in worker["memory_plan"].items())
        line = f"  {worker['role']:<8} {escape(plan)}"
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"[dim]{escape(_curl(cluster.http_url, info['router']['model']))}[/]",
                  highlight=False, soft_wrap=True)  # fmt: skip


def _one_a_role(workers: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first worker of each role; workers of a role are alike."""
    first: dict[str, Mapping[str, Any]] = {}
    for worker in workers:
        first.setdefault(worker["role"], worker)
    return list(first.values())


def _curl(url: str, model: str) -> str:
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 32})
    return f"curl {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"
