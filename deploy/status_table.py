"""The cluster as a table, from what the router's /server_info says."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_SILENT_S = 1.0
"""Without a report, of which there are two a second: worth showing."""
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
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for column in ("worker", "role", "group", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("lag", "run", "wait"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("slots", "pages", "hand-offs", "channel", "life"):
        table.add_column(column, no_wrap=True)
    for worker in workers:
        table.add_row(
            worker["worker_id"],
            worker["role"],
            "" if worker["dp_group"] is None else str(worker["dp_group"]),
            _state(worker),
            _lag(worker),
            f"{worker['running']}/{worker['max_running']}",
            str(worker["waiting"]),
            _counts(worker["slots"]),
            _counts(worker["pages"]),
            _counts({k: v for k, v in worker["handoffs"].items() if k not in _QUIET}) or "-",
            _channels(worker["channels"]),
            f"{worker['incarnation'] & 0xFFFFFF:06x}",  # enough to see that it changed
        )
    return table


def _state(worker: Mapping[str, Any]) -> Text:
    colour = {"ready": "green", "draining": "yellow"}.get(worker["state"], "red")
    return Text(f"{worker['state']} {_duration(worker['uptime_s'])}", colour)


def _lag(worker: Mapping[str, Any]) -> Text:
    """What its engine takes to answer: the step under way, and whatever else is queued. Of one
    that has not reported for a while: for how long."""
    if worker["heard_s"] > _SILENT_S:
        return Text(f"silent {worker['heard_s']:.1f}s", "red")
    lag_ms = worker["lag_ms"]
    text = f"{lag_ms:.1f}ms" if lag_ms < 1000 else f"{lag_ms / 1000:.1f}s"
    return Text(text, "yellow" if lag_ms >= 1000 else "")


def _counts(counts: Mapping[str, int]) -> str:
    """A line an owner or state; those with nothing are left out."""
    return "\n".join(f"{count} {name}" for name, count in counts.items() if count)


def _channels(channels: Mapping[str, str]) -> str:
    """Each that is in use, once; /server_info says with whom, and why."""
    return "\n".join(sorted({channel.partition(":")[0] for channel in channels.values()} - {""}))


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
