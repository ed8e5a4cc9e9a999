"""The message of `baton serve` when the cluster is ready."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape

from baton.core.address import join_host_port
from baton.core.errors import ConfigError
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.files.example_model import EXAMPLE_MODEL, EXAMPLE_PROMPT
from baton.deploy.messages.json_object import JsonObject
from baton.rpc.server_certificate import CertificateFiles, read_server_certificate


@dataclass(frozen=True)
class StartupBanner:
    """The message about a cluster that serves. It can be sent as JSON."""

    seconds: Mapping[str, float]  # duration of each part of the start
    lines: Sequence[str]  # in rich's markup


def banner_of(cluster: Cluster) -> StartupBanner:
    """Return addresses, each role's memory plan, and a command to try."""
    info = cluster.router.server_info()
    routers = cluster.routers
    where = f"{cluster.logs}/worker-*-PID.err; requests in that of {_routers(routers.pids)}"
    lines = [
        f"  HTTP  {escape(', '.join(routers.http_urls))}",
        f"  gRPC  {escape(', '.join(routers.grpc_addresses))}",
        f"  logs  {escape(where)}",
    ]
    for worker in _one_a_role(info["workers"]):
        plan = "; ".join(f"{name} {value}" for name, value in worker["memory_plan"].items())
        lines.append(f"  {worker['role']:<8} {escape(plan)}")
    config = cluster.config.router
    keys = config.api_keys is not None
    url, trusted = cluster.http_url, None
    if config.client_tls is not None:
        url, trusted = _named(url, config.client_tls)
    example = cluster.config.engine.model == EXAMPLE_MODEL
    prompt = EXAMPLE_PROMPT if example else "Once upon a time"
    line = curl_line(url, info["router"]["model"], prompt, keys=keys, trusted=trusted)
    return StartupBanner(cluster.seconds, [*lines, f"[dim]{escape(line)}[/]"])


def print_banner(console: Console, banner: StartupBanner, seconds: float) -> None:
    """Print the message. seconds: since the command."""
    parts = ", ".join(f"{part} {took:.1f} s" for part, took in banner.seconds.items())
    console.print(f"[bold green]ready[/] after {seconds:.1f} s ({parts})", highlight=False)
    for line in banner.lines:
        console.print(line, highlight=False, soft_wrap=True)


def _routers(pids: Mapping[str, int]) -> str:
    """Name the routers' processes."""
    if len(pids) == 1:
        return f"the router, PID {next(iter(pids.values()))}"
    return "the routers, " + ", ".join(f"{name} PID {pid}" for name, pid in pids.items())


def _one_a_role(workers: list[dict[str, Any]]) -> list[JsonObject]:
    """Return the first worker of each role; workers of a role are alike."""
    first: dict[str, JsonObject] = {}
    for worker in workers:
        first.setdefault(worker["role"], worker)
    return list(first.values())


def _named(url: str, files: CertificateFiles) -> tuple[str, Path | None]:
    """Return the URL with a host that the certificate names, and the file that a client must trust
    explicitly, if any.
    """
    try:
        certificate = read_server_certificate(files)
    except ConfigError:  # the files changed since the start
        return url, None
    found = urlsplit(url)
    names = [name for name in certificate.names if "*" not in name]
    host = found.hostname or ""
    if names and host not in names:
        host = names[0]
    trusted = files.certificate if certificate.self_signed else None
    return f"{found.scheme}://{join_host_port(host, found.port or 0)}", trusted


def curl_line(url: str, model: str, prompt: str, *, keys: bool, trusted: Path | None) -> str:
    """Return a command that asks the server at `url`.

    keys: it asks for an API key, which the command takes from BATON_API_KEY. trusted: the
    certificate, if no authority has signed it.
    """
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 32})
    words = ["curl"]
    if trusted is not None:
        words.append(f"--cacert {shlex.quote(str(trusted))}")
    words.append(f"{url}/v1/completions")
    if keys:
        words.append('-H "Authorization: Bearer $BATON_API_KEY"')
    words += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(body)}"]
    return " ".join(words)
