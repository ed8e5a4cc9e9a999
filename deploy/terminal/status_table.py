"""The table of `baton status`, from the router's /server_info."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from baton.deploy.messages.json_object import JsonObject

_SILENT_S = 2.0
"""The time without a report from which the table shows it. There is at least one a second."""
_QUIET = ("complete", "active", "failed", "cancelled", "expired")  # hand-offs that are over
_NAMES = ("worker", "role", "device", "group", "state")
_NUMBERS = ("lag", "run", "wait", "prefills")
_COUNTS = ("slots", "pages", "hand-offs", "channel", "life")
# A worker in lines: what stands in the first one, and in the others.
_HEADING = ("worker", "role", "state")
_BOUNDLESS = 100_000  # columns, for a table's natural width


def render(info: JsonObject) -> RenderableType:
    """Build the table. Raises KeyError if the router is of another version."""
    router, workers = _router_line(info["router"]), info["workers"]
    return Group(
        router,
        _Workers([_cells(worker) for worker in workers]),
        *(_shortage_line(worker) for worker in workers if worker["shortages"]),
        *(_slow_line(worker) for worker in workers if worker.get("slow_links")),
        *(_host_line(worker) for worker in workers if worker.get("host_tier")),
        *(_file_line(worker) for worker in workers if worker.get("file_tier")),
        # A router of the release before says nothing of either.
        *_note_lines("refused: ", info.get("refused_workers", {}), "red"),
        *_note_lines("", info.get("worker_warnings", {}), "yellow"),
    )


def natural_width(console: Console, rendered: RenderableType) -> int:
    """Return the number of columns at which nothing is cut or wrapped."""
    options = console.options.update(max_width=_BOUNDLESS)
    return Measurement.get(console, options, rendered).maximum


def _router_line(router: JsonObject) -> Text:
    return Text.assemble(
        (str(router["model"]), "bold"),
        f"  {router['policy']}  up {_duration(router['uptime_s'])}  "
        f"requests {router['active']} of {router['capacity']}, queued {router['queued']}",
        _waiting(router),
    )


def _waiting(router: JsonObject) -> str:
    """Say what waits at the router, and how long it would take to be served."""
    if not router.get("waiting"):
        return ""
    tokens, rate = router["waiting_tokens"], router["drain_tokens_per_s"]
    left = f", {_duration(tokens / rate)} of work" if rate else ""
    return f"; {router['waiting']} wait here with {tokens:,} tokens{left}"


def _shortage_line(worker: JsonObject) -> Text:
    """Say which pool a worker's prefix cache is short of, and how memory is divided."""
    pool, share = max(worker["shortages"].items(), key=lambda item: item[1])
    ratio = worker["settings"]["mamba_full_memory_ratio"]
    divided = f"; --mamba-full-memory-ratio is {ratio:.2g}" if ratio else ""
    return Text(
        f"{worker['worker_id']}: the prefix cache is short of {pool} "
        f"({share:.0%} of recent evictions){divided}"
    )


def _slow_line(worker: JsonObject) -> Text:
    """Say to which ranks a prefill worker's state moves slowly."""
    links = [f"{rate / 1e6:,.1f} to {rank}" for rank, rate in worker["slow_links"].items()]
    return Text(
        f"{worker['worker_id']}: slow links: MB/s {', '.join(links)}; "
        f"{worker['link_bytes_per_s'] / 1e6:,.1f} to the others"
    )


def _host_line(worker: JsonObject) -> Text:
    """Say what a worker's tier in the host's memory has, has spared, and copies now."""
    host = worker["host_tier"]
    return _tier_line(worker, host, "host memory", "in use", host["saving"], host["loading"])


def _file_line(worker: JsonObject) -> Text:
    """Say what lies in the folder of a worker's files, what it has spared, and what moves now."""
    files = worker["file_tier"]
    held = f"in {files['files']:,}"
    return _tier_line(worker, files, "files", held, files["writing"], files["reading"])


def _tier_line(
    worker: JsonObject, tier: JsonObject, name: str, held: str, there: int, back: int
) -> Text:
    used, total = (tier[each] / (1 << 30) for each in ("used_bytes", "total_bytes"))
    return Text(
        f"{worker['worker_id']}: {name}: {used:.2f} of {total:.2f} GiB {held}, "
        f"{tier['hit_tokens']:,} prompt tokens spared; prefixes on their way: {there} there, "
        f"{back} back"
    )


def _note_lines(kind: str, notes: Mapping[str, str], style: str) -> list[Text]:
    """Say what a router notes of each worker."""
    return [Text(f"{name}: {kind}{note}", style) for name, note in notes.items()]


@dataclass(frozen=True)
class _Workers:
    """A table if its columns fit, else a few lines a worker. No value is ever cut."""

    workers: Sequence[Mapping[str, Text]]  # by column

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        if natural_width(console, table) <= options.max_width:
            yield table
            return
        for cells in self.workers:
            yield Text("  ").join(cells[name] for name in _HEADING)
            lines = (
                ("group", *_NUMBERS, "channel", "life"),
                ("device",),
                *((n,) for n in _COUNTS[:3]),
            )
            for line in lines:
                named = [_named(name, cells[name]) for name in line if cells[name].plain]
                yield Padding(Text("  ").join(named), (0, 0, 0, 2))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._table())

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
        for column in _NAMES:
            table.add_column(column, no_wrap=True)
        for column in _NUMBERS:
            table.add_column(column, justify="right", no_wrap=True)
        for column in _COUNTS:
            table.add_column(column, no_wrap=True)
        for cells in self.workers:
            table.add_row(*(cells[name] for name in (*_NAMES, *_NUMBERS, *_COUNTS)))
        return table


def _named(name: str, cell: Text) -> Text:
    """Put a cell's lines into one line, after the column's name."""
    return Text.assemble((f"{name} ", "dim"), Text(", ").join(cell.split("\n")))


def _cells(worker: JsonObject) -> dict[str, Text]:
    """Return a worker's value for each column."""
    handoffs = {k: v for k, v in worker["handoffs"].items() if k not in _QUIET}
    return {
        "worker": Text(worker["worker_id"]),
        "role": _role(worker),
        "device": _devices(worker),
        "group": Text("" if worker["dp_group"] is None else str(worker["dp_group"])),
        "state": _state(worker),
        "lag": _lag(worker),
        "run": Text(f"{worker['running']}/{worker['max_running']}"),
        "wait": Text(str(worker["waiting"])),
        "prefills": Text(_prefill_here(worker)),
        "slots": _counts(worker["slots"]),
        "pages": _counts(worker["pages"]),
        "hand-offs": _counts(handoffs) or Text("-"),
        "channel": _channels(worker["channels"]),
        "life": Text(f"{worker['incarnation'] & 0xFFFFFF:06x}"),  # enough digits to notice a change
    }


def _role(worker: JsonObject) -> Text:
    """Return the role, and the number of ranks where there are several."""
    ranks = len(worker.get("rank_pids", ()))  # which a router of the last release does not say
    return Text(f"{worker['role']}, {ranks} ranks" if ranks > 1 else worker["role"])


def _devices(worker: JsonObject) -> Text:
    """Return the devices of all ranks, by rank, a line each; once, where they share one."""
    devices = worker.get("rank_devices", ())  # which a router of the release before does not say
    return Text("\n".join(dict.fromkeys(devices)))


def _prefill_here(worker: JsonObject) -> str:
    """Return the tokens of the longest prompt that a rank would compute itself now."""
    tokens = worker.get("prefill_here_tokens")  # a router of the release before says none
    return "" if tokens is None else f"{tokens:,}"


def _state(worker: JsonObject) -> Text:
    colour = {"ready": "green", "draining": "yellow"}.get(worker["state"], "red")
    return Text(f"{worker['state']} {_duration(worker['uptime_s'])}", colour)


def _lag(worker: JsonObject) -> Text:
    """Return the engine's response time, which covers the running step and queued work.

    For a worker that has not reported for a while, return the time since its last report.
    """
    if worker["heard_s"] > _SILENT_S:
        return Text(f"silent {worker['heard_s']:.1f}s", "red")
    lag_ms = worker["lag_ms"]
    text = f"{lag_ms:.1f}ms" if lag_ms < 1000 else f"{lag_ms / 1000:.1f}s"
    return Text(text, "yellow" if lag_ms >= 1000 else "")


def _counts(counts: Mapping[str, int]) -> Text:
    """Return one line for each owner or state that has any."""
    return Text("\n".join(f"{count} {name}" for name, count in counts.items() if count))


def _channels(channels: Mapping[str, str]) -> Text:
    """Return each channel in use once; /server_info gives the peers and the reasons."""
    used = {channel.partition(":")[0] for channel in channels.values()} - {""}
    return Text("\n".join(sorted(used)))


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
