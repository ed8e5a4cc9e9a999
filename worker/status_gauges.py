"""Gauges of the engine's status."""

from collections.abc import Callable, Mapping

from prometheus_client import Gauge

from baton.engine.layout.owners import Owner
from baton.engine.status import EngineStatus
from baton.worker.metric_factory import MetricFactory


class StatusGauges:
    """The gauges that show the newest `EngineStatus`."""

    def __init__(self, make: MetricFactory) -> None:
        self.waiting_before: Callable[[], int] = lambda: 0
        """Returns the requests that wait but are not in the engine yet."""
        self._labels = make.labels
        self._slots = make.gauge("slots", "State slots by owner.", "owner")
        self._pages = make.gauge("pages", "KV pages by owner.", "owner")
        self._running = make.gauge("requests_running", "Requests that take part in steps.")
        self._waiting = make.gauge("requests_waiting", "Requests that wait for the engine.")

    def set(self, status: EngineStatus) -> None:
        """Show `status` from now on."""
        self._running.labels(**self._labels).set(status.running)
        self._waiting.labels(**self._labels).set(self.waiting_before() + status.waiting)
        self._set_owners(self._slots, status.slots)
        self._set_owners(self._pages, status.pages)

    def _set_owners(self, gauge: Gauge, owned: Mapping[Owner, int]) -> None:
        for owner, count in owned.items():
            gauge.labels(**self._labels, owner=owner.value).set(count)
