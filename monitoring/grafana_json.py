"""Panels, and the JSON that Grafana loads, by Grafana's own library."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import DataSourceRef, LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.common import StackingMode as Mode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, VariableRefresh
from queries import Query

SOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")


@dataclass(frozen=True)
class Panel:
    """One panel: what it shows, in which unit of Grafana, and by which queries."""

    title: str
    unit: str
    queries: Sequence[Query]
    meaning: str = ""
    stacked: bool = False
    single: bool = False  # a number instead of a graph


@dataclass(frozen=True)
class Row:
    """A row of panels below a heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Dashboard:
    """One dashboard. uid: what alerts name, and the name of its file."""

    uid: str
    title: str
    rows: Sequence[Row]

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]


def build(spec: Dashboard) -> str:
    """Return the JSON of a dashboard."""
    made = (
        dashboard.Dashboard(spec.title)
        .uid(spec.uid)
        .tags(["baton"])
        .editable()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-30m", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("job")
            .label("cluster")
            .query("label_values(baton_router_workers, job)")
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    )
    for row in spec.rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(_panel(panel))
    whole = made.build()
    for number, built in enumerate(whole.panels or [], start=1):
        built.id_val = number
    return json.dumps(whole, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _panel(spec: Panel) -> stat.Panel | timeseries.Panel:
    panel: stat.Panel | timeseries.Panel
    if spec.single:
        panel = stat.Panel().height(4).span(6)
    else:
        legend = common.VizLegendOptions().show_legend(True)
        legend = legend.placement(LegendPlacement.BOTTOM).display_mode(LegendDisplayMode.LIST)
        panel = timeseries.Panel().height(8).span(6).min(0).legend(legend)
        if spec.stacked:
            stacking = common.StackingConfig().mode(Mode.NORMAL).group("A")
            panel = panel.stacking(stacking).fill_opacity(30)
    panel = panel.title(spec.title).unit(spec.unit).datasource(SOURCE).description(spec.meaning)
    for letter, query in zip("ABCDEFGH", spec.queries, strict=False):
        target = prometheus.Dataquery().ref_id(letter).expr(query.expr).datasource(SOURCE)
        panel = panel.with_target(target.legend_format(query.legend).range())
    return panel
