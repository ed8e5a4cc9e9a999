"""The cluster as a table, from what the router's /server_info says."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_QUIET = ("complete", "active", "failed", "cancelled", "expired")  # hand-offs that are over


def render(info: Mapping[str, Any]) -> RenderableType:
    """Raises KeyError where the router is of another version."""
    return Group(_router_line(info["router"]), _workers(info["workers"]))


def _router_line(router: Mapping[str, Any]) -> Text:
    return Text.assemble(
        (str(router["model"]), "bold"),
        f"  {router['policy']}  up {_duration(router['uptime_s'])}  "
        f"requests {router['active']} of {router['capacity']}, queued {router['queued']}",
    )


def _workers(workers: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("worker", "role", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("up", justify="right", no_wrap=True)
    table.add_column("run", justify="right")
    table.add_column("wait", justify="right")
    for column in ("slots", "pages", "hand-offs", "incarnation"):
        table.add_column(column)
    for worker in workers:
        table.add_row(
            worker["worker_id"],
            worker["role"],
            _state(worker),
            _duration(worker["uptime_s"]),
            f"{worker['running']}/{worker['max_running']}",
            str(worker["waiting"]),
            _owners(worker["slots"]),
            _owners(worker["pages"]),
            _owners({k: v for k, v in worker["handoffs"].items() if k not in _QUIET}) or "-",
            str(worker["incarnation"]),
        )
    return table


def _state(worker: Mapping[str, Any]) -> Text:
    if worker["leaving"]:
        return Text("leaving", "yellow")
    return Text("ready", "green") if worker["ready"] else Text("not ready", "red")


def _owners(counts: Mapping[str, int]) -> str:
    """free 12, live 3: owners of nothing are left out."""
    return ", ".join(f"{owner} {count}" for owner, count in counts.items() if count)


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
