"""The names, units, labels and help texts of all metrics.

The rules are those of Prometheus' own linter (`promtool check metrics`) and of docs/metrics.md.
"""

import re

import pytest
from metrics_table import PAGE, Metric, metrics, registries, with_tables

METRICS = [
    (process, metric) for process, registry in registries().items() for metric in metrics(registry)
]
every_metric = pytest.mark.parametrize(
    ("process", "metric"), METRICS, ids=[metric.name for _, metric in METRICS]
)
COMPONENTS = {"router": {"router"}, "worker": {"worker", "engine"}}
"""Components whose metrics a process serves."""
TYPES = {"counter", "gauge", "histogram", "summary", "untyped", "info", "total", "count"}
OTHER_UNITS = {
    "ns", "us", "ms", "s", "sec", "secs", "nanoseconds", "microseconds", "milliseconds", "millis",
    "minutes", "hours", "days", "bits", "b", "kb", "mb", "gb", "kilobytes", "megabytes",
    "gigabytes", "kibibytes", "mebibytes", "gibibytes", "percent", "pct",
}  # fmt: skip
UNITS = ("seconds", "bytes")
COUNTED = ("tokens",)
"""Things whose numbers a histogram may have."""
LABELS = {
    "worker", "role", "dp_group", "dp_rank", "outcome", "kind", "part", "state", "from", "to",
    "owner", "reason", "key", "cap", "field", "certificate", "rank", "proposer", "peer", "position",
}  # fmt: skip
"""Explained in docs/metrics.md."""


@every_metric
def test_a_name_has_a_component_a_base_unit_and_the_suffix_of_its_type(
    process: str, metric: Metric
) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", metric.name)
    project, component, *words = metric.name.split("_")
    assert project == "baton" and component in COMPONENTS[process]
    assert (words[-1] == "total") == (metric.kind == "counter")
    subject = words[:-1] if metric.kind == "counter" else words
    assert subject, "there is a name between the component and `_total`"
    assert not set(subject) & (TYPES | OTHER_UNITS)
    assert not set(subject[:-1]) & set(UNITS), "the unit comes last"
    assert metric.kind != "histogram" or subject[-1] in (*UNITS, *COUNTED)


@every_metric
def test_a_metric_is_explained_in_a_sentence(process: str, metric: Metric) -> None:
    assert re.fullmatch(r"[A-Z].*\.", metric.meaning)
    assert "|" not in metric.meaning, "it would end the cell of its table"


@every_metric
def test_a_label_is_one_that_is_known(process: str, metric: Metric) -> None:
    assert set(metric.labels) <= LABELS
    assert len(set(metric.labels)) == len(metric.labels)
    explained = PAGE.read_text().split("## Labels")[1].split("##")[0]
    assert all(f"`{label}`" in explained for label in metric.labels)


@every_metric
def test_every_metric_of_a_worker_says_which_worker(process: str, metric: Metric) -> None:
    own = {"worker", "role"} <= set(metric.labels)
    assert own == (process == "worker")


def test_no_name_stands_for_two_metrics() -> None:
    names = [metric.name for _, metric in METRICS]
    assert len(set(names)) == len(names) > 40
    bases = {name.removesuffix("_total") for name in names}
    made = {f"{base}{suffix}" for base in bases for suffix in ("_sum", "_count", "_bucket")}
    assert not made & set(names)


def test_the_page_of_metrics_has_each_of_them() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "run `make docs` and commit what it changes"
