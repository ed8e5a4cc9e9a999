"""Keeps the worker's status up to date for its routers."""

import asyncio
import contextlib
import json
import os
import time
from dataclasses import replace

from baton.core.supervised import child
from baton.engine.cache.eviction_causes import Shortages
from baton.engine.collectives.rank_device import device_name, rank_device
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner, held_share
from baton.engine.settings.counters import Counters
from baton.engine.status import EngineStatus
from baton.proto import worker_pb2
from baton.text.model_folder import model_name
from baton.worker.context import RoleService, WorkerContext
from baton.worker.figures import totals_of
from baton.worker.link_report import LinkReport
from baton.worker.settings import engine_settings
from baton.worker.snapshot_feed import SnapshotFeed

LONGEST_PERIOD_S = 1.0
REPORTS_PER_LEASE = 3
LEAST_S = 0.05  # between two reports, however often the load changes


def report_period_s(lease_ms: int) -> float:
    """Return the time from one report to the next while the load does not change."""
    return min(LONGEST_PERIOD_S, lease_ms / 1000 / REPORTS_PER_LEASE)


class Reporter:
    """A poller of the engine's status: once a period, and soon after the load has changed.

    An engine answers between two steps. During a long step the last answer is reported again with
    the time since, because a router treats a silent worker as lost.
    """

    def __init__(self, context: WorkerContext, role: RoleService) -> None:
        self._context = context
        self._role = role
        self._snapshot_log = context.engine.prefixes.log_snapshots()
        self.snapshots = SnapshotFeed()
        settings = engine_settings(context.config.engine, context.engine.plan)
        self._settings = {name: json.dumps(value) for name, value in settings.items()}
        self._model = model_name(context.config.engine.model)
        self._memory_plan = context.engine.memory_report
        followers = context.engine.followers
        self._rank_pids = () if followers is None else tuple(followers.processes)
        plan, ranks = context.engine.plan, 1 + len(self._rank_pids)
        # Bytes of a request's recurrent state, and of a token's KV.
        self._sizes = ranks * plan.slot_layout.state_bytes, ranks * plan.page_layout.token_bytes
        self._links = LinkReport(*self._sizes)
        own = device_name(rank_device(context.config.engine, 0))
        self._rank_devices = (own, *(() if followers is None else followers.devices))
        self._began = time.monotonic()
        self._period_s = report_period_s(context.config.lease_ms)
        self._changed = asyncio.Event()
        self._fresh = asyncio.Condition()
        self._reports = 0
        self._latest = worker_pb2.WorkerStatus()
        self._details = worker_pb2.WorkerStatus()
        self._details_number = 0
        self.leaving = False

    def load_changed(self) -> None:
        """Report soon instead of at the end of the period."""
        self._changed.set()

    async def run(self) -> None:
        """Poll until cancelled, or until the engine's loop has ended."""
        while True:
            self._changed.clear()
            began = time.monotonic()
            look = child(self.status())
            try:
                await self._report_while(look)
            finally:
                look.cancel()
            self._latest = look.result()
            self._renew_details()
            await self._report()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._changed.wait()
            await asyncio.sleep(began + LEAST_S - time.monotonic())

    async def next_report(
        self, after: int, known: int = 0
    ) -> tuple[int, int, worker_pb2.WorkerReport]:
        """Wait for the first report with a number above `after`. Return its number, from 1, that of
        its details, and the report.

        known: the number of the details that the router has; 0: none. It is not sent them again.
        """
        async with self._fresh:
            await self._fresh.wait_for(lambda: self._reports > after)
            report = worker_pb2.WorkerReport(status=self._latest, leaving=self.leaving)
            report.same_details = known == self._details_number
            if not report.same_details:
                report.status.MergeFrom(self._details)
            return self._reports, self._details_number, report

    async def full_status(self) -> worker_pb2.WorkerStatus:
        """Return the current status with its details. Waits for the step under way."""
        status = await self.status()
        status.MergeFrom(self._new_details())
        return status

    async def status(self) -> worker_pb2.WorkerStatus:
        """Return the current status without its details. Waits for the step under way."""
        asked = time.monotonic()
        found, counters, changes = await self._context.port.call(self._look)
        self.snapshots.add(changes)
        lag_s = time.monotonic() - asked
        self._context.metrics.set_status(found)
        self._context.metrics.set_counters(counters)
        self._context.metrics.set_lag(lag_s)
        return self._to_proto(found, counters, lag_s)

    def _look(self, engine: Engine) -> tuple[EngineStatus, Counters, dict[int, int]]:
        """Read the engine, on its thread."""
        return engine.status(), replace(engine.counters), self._snapshot_log.take()

    async def _report_while(self, look: "asyncio.Task[worker_pb2.WorkerStatus]") -> None:
        """Repeat the last report until `look` is done."""
        asked = time.monotonic()
        while not (await asyncio.wait({look}, timeout=self._period_s))[0]:
            lag_s = time.monotonic() - asked
            self._context.metrics.set_lag(lag_s)
            self._latest.lag_us = round(lag_s * 1e6)
            if self._reports:
                await self._report()

    async def _report(self) -> None:
        async with self._fresh:
            self._reports += 1
            self._fresh.notify_all()

    def _renew_details(self) -> None:
        details = self._new_details()
        if not self._details_number or details != self._details:
            self._details = details
            self._details_number += 1

    def _new_details(self) -> worker_pb2.WorkerStatus:
        """Return what seldom changes, and is longer than all the rest where workers are many."""
        return worker_pb2.WorkerStatus(
            memory_plan=(
                worker_pb2.PlanPart(name=name, text=text)
                for name, text in self._memory_plan.items()
            ),
            peers=self._role.peers(),
            channels=self._role.channels(),
            settings=self._settings,
            rank_devices=self._rank_devices,
        )

    def _to_proto(
        self, status: EngineStatus, counters: Counters, lag_s: float
    ) -> worker_pb2.WorkerStatus:
        context = self._context
        config = context.config.engine
        links = self._role.links()
        context.metrics.transfers.set_links(links)
        fastest, slow = self._links.update(links)
        state_bytes, token_bytes = self._sizes
        return worker_pb2.WorkerStatus(
            worker=context.hello.worker,
            model=self._model,
            running=status.running,
            waiting=status.waiting,
            queued_tokens=status.queued_tokens,
            max_running=status.max_running,
            max_model_len=status.max_model_len,
            slots=_owners(status.slots),
            pages=_owners(status.pages),
            page_size=config.page_size,
            uptime_s=time.monotonic() - self._began,
            handoffs=context.handoffs.counts,
            pid=os.getpid(),
            rank_pids=self._rank_pids,
            lag_us=round(lag_s * 1e6),
            shortages=_shortages(status.shortages),
            decode_step_us=status.decode_step_s * 1e6,
            prompt_token_us=status.prompt_token_s * 1e6,
            beside_decode=status.beside_decode,
            link_bytes_per_s=fastest,
            slow_links=slow,
            state_bytes=state_bytes,
            token_bytes=token_bytes,
            totals=totals_of(counters).to_proto(),
            memory_held=max(held_share(status.slots), held_share(status.pages)),
            host=_host(status),
            files=_files(status),
        )


def _host(status: EngineStatus) -> worker_pb2.HostTier | None:
    """Return what the host's tier has; None where there is none."""
    if not status.host_slots:
        return None
    return worker_pb2.HostTier(
        slots=_owners(status.host_slots),
        pages=_owners(status.host_pages),
        saving=status.host_saving,
        loading=status.host_loading,
    )


def _files(status: EngineStatus) -> worker_pb2.FileTier | None:
    """Return what there is of files; None where the worker has none."""
    if (found := status.files) is None:
        return None
    return worker_pb2.FileTier(
        files=found.files,
        bytes=found.nbytes,
        most_bytes=found.budget,
        writing=found.writing,
        reading=found.reading,
    )


def _shortages(lately: Shortages) -> dict[str, float]:
    """Return each pool's share of what the prefix cache evicted lately; empty if nothing was."""
    total = lately.slots + lately.pages
    return {"slots": lately.slots / total, "pages": lately.pages / total} if total else {}


def _owners(owned: dict[Owner, int]) -> list[worker_pb2.OwnerCount]:
    return [worker_pb2.OwnerCount(owner=owner.value, count=count) for owner, count in owned.items()]
