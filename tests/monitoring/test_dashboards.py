"""The dashboards: that they are what the code makes, and that Grafana can read them."""

import enum
import inspect
import json
import re
import types
import typing
from typing import Any

import pytest
import yaml
from dashboards import DASHBOARDS, FOLDER
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as schema
from grafana_json import Dashboard, build
from metrics_table import metrics, registries

ROOT = FOLDER.parents[2]
KNOWN = {metric.name for registry in registries().values() for metric in metrics(registry)}
every_dashboard = pytest.mark.parametrize("spec", DASHBOARDS, ids=lambda spec: spec.uid)


def committed(spec: Dashboard) -> Any:
    return json.loads((FOLDER / f"{spec.uid}.json").read_text())


def mismatches(value: object, wanted: Any, place: str = "") -> list[str]:
    """Compare a value with the types that Grafana's schema gives it, all the way down."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (Any, object) or isinstance(wanted, typing.TypeVar):
        return []
    if origin in (typing.Union, types.UnionType):
        each = [mismatches(value, one, place) for one in inner]
        return [] if [] in each else min(each, key=len)
    if origin is typing.Literal:
        return [] if value in inner else [f"{place}: {value!r} is none of {inner}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{place}: {value!r} is no list"]
        return [m for i, v in enumerate(value) for m in mismatches(v, inner[0], f"{place}[{i}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{place}: {value!r} is no object"]
        return [m for k, v in value.items() for m in mismatches(v, inner[1], f"{place}.{k}")]
    if inspect.isclass(wanted) and issubclass(wanted, enum.Enum):
        return [] if value in set(wanted) else [f"{place}: {value!r} is none of {list(wanted)}"]
    if wanted is float and type(value) in (int, float):
        return []
    if wanted in (bool, int, float, str, type(None)):
        return [] if type(value) is wanted else [f"{place}: {value!r} is no {wanted}"]
    if wanted is not variants.Dataquery and not isinstance(value, wanted):
        return [f"{place}: {type(value).__name__} is no {wanted.__name__}"]
    fields = typing.get_type_hints(type(value))
    return [
        m
        for name, kind in fields.items()
        for m in mismatches(getattr(value, name), kind, f"{place}.{name}")
    ]


@every_dashboard
def test_a_file_is_what_the_code_makes(spec: Dashboard) -> None:
    text = (FOLDER / f"{spec.uid}.json").read_text()
    assert text == build(spec), "run `make monitoring` and commit what it changes"


def test_no_file_is_left_of_a_dashboard_that_is_gone() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {spec.uid for spec in DASHBOARDS}


@every_dashboard
def test_grafanas_schema_knows_every_field_and_its_type(spec: Dashboard) -> None:
    """The schema is the one from which grafana-foundation-sdk is generated.

    What it does not know is lost when it reads the file, so the file must come back whole.
    """
    text = committed(spec)
    read = schema.Dashboard.from_json(text)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == text
    assert not mismatches(read, schema.Dashboard)


def test_the_check_of_the_schema_finds_what_is_wrong() -> None:
    good = committed(DASHBOARDS[0])
    lost = schema.Dashboard.from_json(good | {"panles": []})
    assert json.loads(json.dumps(lost, cls=JSONEncoder)) == good
    for field, value in (("title", 3), ("refresh", ["10s"]), ("graphTooltip", 9), ("tags", "x")):
        wrong = schema.Dashboard.from_json(good | {field: value})
        assert mismatches(wrong, schema.Dashboard), field
    panels = json.loads(json.dumps(good["panels"]))
    panels[1]["gridPos"]["w"] = "6"
    assert mismatches(schema.Dashboard.from_json(good | {"panels": panels}), schema.Dashboard)


@every_dashboard
def test_panels_are_on_the_grid_and_none_covers_another(spec: Dashboard) -> None:
    panels = committed(spec)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for p in (panel["gridPos"] for panel in panels)
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(set(cells)) == len(cells) and all(x < 24 for x, _ in cells)


@every_dashboard
def test_every_query_names_metrics_that_exist(spec: Dashboard) -> None:
    recorded = {
        rule["record"]
        for group in yaml.safe_load((ROOT / "monitoring/prometheus/recording.yml").read_text())[
            "groups"
        ]
        for rule in group["rules"]
    }
    for panel in spec.panels:
        for query in panel.queries:
            for name in re.findall(r"\bbaton_(?:router|worker|engine)_\w+", query.expr):
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                assert {name, base} & KNOWN or any(name in rule for rule in recorded), name
            for name in re.findall(r"\b(?:job|worker):\w+:\w+", query.expr):
                assert name in recorded, name


@every_dashboard
def test_titles_are_unique(spec: Dashboard) -> None:
    titles = [panel.title for panel in spec.panels]
    assert len(set(titles)) == len(titles) and all(panel.queries for panel in spec.panels)
