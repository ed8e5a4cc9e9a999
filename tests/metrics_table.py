"""The tables in docs/metrics.md. `python tests/metrics_table.py` (`make docs`) writes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from baton.api.access.client_metrics import ClientMetrics
from baton.core.role import Role
from baton.router.metrics import RouterMetrics
from baton.rpc.metric_aliases.alias_collector import ALIASES
from baton.worker.metrics import WorkerMetrics

PAGE = Path(__file__).resolve().parent.parent / "docs/metrics.md"
BEGIN, END = "<!-- begin generated -->\n", "<!-- end generated -->\n"


@dataclass(frozen=True)
class Metric:
    """One metric of a registry, as Prometheus shows it."""

    name: str
    kind: str  # counter, gauge or histogram
    meaning: str  # the help text
    labels: tuple[str, ...]


def registries() -> dict[str, CollectorRegistry]:
    """Return the registry of each kind of process."""
    found = {
        "router": RouterMetrics().registry,
        "worker": WorkerMetrics("worker-0", Role.DECODE).registry,
    }
    ClientMetrics("router", found["router"])
    ClientMetrics("worker", found["worker"], {"worker": "worker-0", "role": "decode"})
    return found


def metrics(registry: CollectorRegistry) -> Iterator[Metric]:
    """Yield all metrics, those without a sample yet included, in order of definition."""
    for collector in registry._collector_to_names:  # no public list says what is registered
        names = collector._labelnames if isinstance(collector, MetricWrapperBase) else ()
        for family in collector.collect():
            labels = names or tuple(
                dict.fromkeys(
                    name for sample in family.samples for name in sample.labels if name != "le"
                )
            )
            suffix = "_total" if family.type == "counter" else ""
            yield Metric(family.name + suffix, family.type, family.documentation, tuple(labels))


def tables() -> str:
    """Return one Markdown table a component."""
    found = [metric for registry in registries().values() for metric in metrics(registry)]
    parts = []
    for component in ("router", "worker", "engine"):
        rows = [
            f"| `{each.name}` | {each.kind} | {', '.join(f'`{name}`' for name in each.labels)} "
            f"| {each.meaning} |\n"
            for each in found
            if each.name.startswith(f"baton_{component}_")
        ]
        head = "| name | type | labels | meaning |\n|---|---|---|---|\n"
        parts.append(f"### {component.capitalize()}\n\n{head}{''.join(sorted(rows))}\n")
    for dialect, aliases in ALIASES.items():
        rows = [
            f"| `{each.name}` | {each.kind} | {', '.join(f'`{name}`' for name in each.labels)} "
            f"| {'' if each.on_worker else 'router'} | {each.meaning} |\n"
            for each in aliases
        ]
        head = "| name | type | labels | only on | meaning |\n|---|---|---|---|---|\n"
        title = f"### `--metric-aliases {dialect}`"
        parts.append(f"{title}\n\n{head}{''.join(sorted(rows))}\n")
    return "\n" + "".join(parts)


def with_tables(page: str) -> str:
    """Return `page` with the tables between its marks."""
    head, rest = page.split(BEGIN)
    return head + BEGIN + tables() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
