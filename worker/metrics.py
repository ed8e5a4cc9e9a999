"""A worker's Prometheus metrics, on a registry of their own."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Gauge, generate_latest

from baton.core.metric_dialect import MetricDialect
from baton.core.role import Role
from baton.engine.cache.cached_pools import FileCounts
from baton.engine.layout.owners import Owner
from baton.engine.settings.counters import Counters
from baton.engine.status import EngineStatus
from baton.rpc.metric_aliases.alias_collector import AliasCollector
from baton.rpc.metric_aliases.figures import Figures, Latency, ServedWork
from baton.rpc.metric_aliases.of_registry import by_label, only
from baton.worker.engine_counters import EngineCounters
from baton.worker.figures import load_of, totals_of
from baton.worker.memory_gauges import MemoryGauges
from baton.worker.metric_factory import MetricFactory
from baton.worker.transfer_metrics import TransferMetrics


class WorkerMetrics:
    """The metrics of one worker, each labelled with its id and role. Thread-safe."""

    def __init__(self, worker_id: str, role: Role) -> None:
        make = MetricFactory({"worker": worker_id, "role": role.value})
        self.registry = make.registry
        self._labels = make.labels
        self._requests = make.counter(
            "requests", "Answers that ended here, by finish reason or error code.", "outcome"
        )
        self._prefills = make.counter(
            "prefills",
            "Hand-offs of computed prompts that ended here, by their last state or handed_over.",
            "outcome",
        )
        self._tokens = make.counter(
            "tokens", "Prompt tokens computed and output tokens sampled here.", "kind"
        )
        # `labels` sorts and takes a lock, so the children are looked up once and not at each step.
        self._tokens_of = {
            kind: self._tokens.labels(**self._labels, kind=kind) for kind in ("prompt", "output")
        }
        self._fetches = make.counter(
            "prefix_fetches", "Prefixes requested from another worker's cache.", "outcome"
        )
        self._lag = make.gauge(
            "engine_lag_seconds",
            "Time that the engine took to answer, or has not answered for, whichever is longer.",
        )
        self._certificates = make.gauge(
            "certificate_expiry_seconds", "Time until a certificate's end.", "certificate"
        )
        self._status = StatusGauges(make)
        self.memory = MemoryGauges(make)
        self.transfers = TransferMetrics(make, role)
        self._engine = EngineCounters(self._labels, self.registry)
        self.step = make.histogram("step", "Duration of one engine step.")
        self.prefill_queue = make.histogram(
            "prefill_queue", "From a request's arrival at the prefill worker to its first chunk."
        )
        self.prefill = make.histogram("prefill", "From the first chunk to the first token.")
        self.transfer = make.histogram(
            "transfer", "From the first token's arrival at the rank to the last verified byte."
        )
        self.decode_wait = make.histogram(
            "decode_wait", "From the last verified byte to the launch of the first decode step."
        )
        self.prefill_to_decode = make.histogram(
            "prefill_to_decode",
            "From the prefill's last layer to the launch of the first decode step.",
        )
        self.first_decode_step = make.histogram(
            "first_decode_step", "Duration of a request's first decode step."
        )

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def show_aliases(
        self, dialects: Iterable[MetricDialect], model: str, page_size: int
    ) -> AliasCollector:
        """Export the metrics under other servers' names too. model: its name. page_size: tokens."""

        def figures() -> Figures:
            load = load_of(self._status.newest, self._status.waiting_before(), page_size)
            return Figures(load, self._served(), totals_of(self._engine.newest))

        return AliasCollector(dialects, model, figures, self.registry)

    def _served(self) -> ServedWork:
        counters = self._engine.newest
        latencies = {Latency.QUEUE: self.prefill_queue, Latency.PREFILL: self.prefill}
        return ServedWork(
            prompt_tokens=counters.prompt_tokens + counters.adopted_tokens,
            cached_tokens=counters.state_hit_tokens + counters.transfer_hit_tokens,
            cached_host_tokens=counters.host_hit_tokens,
            cached_file_tokens=counters.file_hit_tokens,
            output_tokens=by_label(self._tokens, "kind")["output"],
            outcomes=by_label(self._requests, "outcome"),
            latencies={latency: only(histogram) for latency, histogram in latencies.items()},
        )

    def count_request(self, outcome: str) -> None:
        self._requests.labels(**self._labels, outcome=outcome).inc()

    def count_prefill(self, outcome: str) -> None:
        self._prefills.labels(**self._labels, outcome=outcome).inc()

    def count_fetch(self, outcome: str) -> None:
        self._fetches.labels(**self._labels, outcome=outcome).inc()

    def count_tokens(self, kind: str, count: int) -> None:
        """kind: prompt or output."""
        self._tokens_of[kind].inc(count)

    def set_status(self, status: EngineStatus) -> None:
        self._status.set(status)

    def count_waiting(self, waiting: Callable[[], int]) -> None:
        """Count requests that wait but are not in the engine yet among those that wait."""
        self._status.waiting_before = waiting

    def set_lag(self, seconds: float) -> None:
        self._lag.labels(**self._labels).set(seconds)

    def certificate(self, name: str, seconds_left: Callable[[], float]) -> None:
        """Export a certificate's end. seconds_left: called when it is scraped."""
        self._certificates.labels(**self._labels, certificate=name).set_function(seconds_left)

    def set_counters(self, counters: Counters) -> None:
        """counters: a copy, made on the engine's thread."""
        self._engine.update(counters)

    def observe_step(self, seconds: float) -> None:
        self.step.observe(seconds)


class StatusGauges:
    """The gauges that show the newest `EngineStatus`."""

    def __init__(self, make: MetricFactory) -> None:
        self.waiting_before: Callable[[], int] = lambda: 0
        """Returns the requests that wait but are not in the engine yet."""
        self.newest: EngineStatus | None = None
        self._labels = make.labels
        self._slots = make.gauge("slots", "State slots by owner.", "owner")
        self._pages = make.gauge("pages", "KV pages by owner.", "owner")
        self._host_slots = make.gauge("host_slots", "Slots of the host's tier by owner.", "owner")
        self._host_pages = make.gauge("host_pages", "Pages of the host's tier by owner.", "owner")
        self._host_copies = make.gauge(
            "host_copies",
            "Prefixes that are copied into the host's tier, or wait for it (save), and that are "
            "copied back (load).",
            "kind",
        )
        self._files = make.gauge(
            "files", "Files with cached prefixes in --file-cache, whosever they are."
        )
        self._file_bytes = make.gauge("file_bytes", "Bytes of those files.")
        self._file_limit_bytes = make.gauge("file_limit_bytes", "Most bytes of them.")
        self._file_copies = make.gauge(
            "file_copies",
            "Prefixes that are written to files, or wait for it (write), and that are read (read).",
            "kind",
        )
        self._running = make.gauge("requests_running", "Requests that take part in steps.")
        self._waiting = make.gauge("requests_waiting", "Requests that wait for the engine.")

    def set(self, status: EngineStatus) -> None:
        """Show `status` from now on."""
        self.newest = status
        self._running.labels(**self._labels).set(status.running)
        self._waiting.labels(**self._labels).set(self.waiting_before() + status.waiting)
        self._set_owners(self._slots, status.slots)
        self._set_owners(self._pages, status.pages)
        self._set_owners(self._host_slots, status.host_slots)
        self._set_owners(self._host_pages, status.host_pages)
        if status.host_slots:
            for kind, copies in (("save", status.host_saving), ("load", status.host_loading)):
                self._host_copies.labels(**self._labels, kind=kind).set(copies)

        if status.files is not None:
            self._set_files(status.files)

    def _set_files(self, files: FileCounts) -> None:
        for gauge, value in (
            (self._files, files.files),
            (self._file_bytes, files.nbytes),
            (self._file_limit_bytes, files.budget),
        ):
            gauge.labels(**self._labels).set(value)
        for kind, copies in (("write", files.writing), ("read", files.reading)):
            self._file_copies.labels(**self._labels, kind=kind).set(copies)

    def _set_owners(self, gauge: Gauge, owned: Mapping[Owner, int]) -> None:
        for owner, count in owned.items():
            gauge.labels(**self._labels, owner=owner.value).set(count)
