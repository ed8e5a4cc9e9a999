"""The alert rules. Each alert has a heading of its own, with what to do, in docs/monitoring.md."""

from dataclasses import dataclass

from objectives import Objectives
from windows import Windows

RUNBOOK = "docs/monitoring.md"
PAGE, TICKET = "page", "ticket"  # severities: now; in working hours


@dataclass(frozen=True)
class Alert:
    """One alert of the rules file."""

    name: str
    expr: str
    wait: str  # for so long the expression must hold
    severity: str
    summary: str  # what is wrong, and where
    look_at: str  # what the operator reads first
    dashboard: str  # the uid of the one that shows it
    window: str = ""  # of two alerts with one name: the longer window of each

    def rule(self) -> dict[str, object]:
        """Return the rule as the file has it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.wait,
            "labels": {"severity": self.severity}
            | ({"window": self.window} if self.window else {}),
            "annotations": {
                "summary": self.summary,
                "look_at": self.look_at,
                "dashboard": self.dashboard,
                "runbook_url": f"{RUNBOOK}#{self.name.lower()}",
            },
        }


def alert_groups(times: Windows, goals: Objectives) -> list[dict[str, object]]:
    """Return the groups of a rules file."""
    groups = {
        "baton-alerts-workers": _workers(times),
        "baton-alerts-load": [*_load(times), *_burns(times, goals)],
        "baton-alerts-state": _state(times, goals),
        "baton-alerts-certificates": [_certificate(goals)],
    }
    return [{"name": name, "rules": [a.rule() for a in found]} for name, found in groups.items()]


def _workers(times: Windows) -> list[Alert]:
    return [
        Alert(
            "BatonWorkerLost",
            "max by (job, worker) "
            f"(increase(baton_router_worker_losses_total[{times('10m')}])) > 0",
            "0s",
            TICKET,
            "{{ $labels.worker }} ended, was cut off or fell silent",
            "the last lines of its log; `baton status`: whether it is back",
            "baton-router",
        ),
        Alert(
            "BatonNoWorker",
            "max by (job, role) (baton_router_workers) == 0",
            times("1m"),
            PAGE,
            "no {{ $labels.role }} worker is registered; requests fail after --worker-wait",
            "`baton status`; the logs of the workers of this role",
            "baton-router",
        ),
        Alert(
            "BatonTargetDown",
            'up{baton_role=~".+"} == 0',
            times("2m"),
            PAGE,
            "the {{ $labels.baton_role }} {{ $labels.baton_worker }}{{ $labels.baton_router }} at "
            "{{ $labels.instance }} cannot be scraped",
            "whether the router's process runs; its API key with the scope `metrics`",
            "baton-overview",
        ),
    ]


def _load(times: Windows) -> list[Alert]:
    queued = f"job:baton_requests_queued:sum[{times('5m')}]"
    least = f"min_over_time({queued})"
    return [
        Alert(
            "BatonQueueGrowing",
            f"{least} > 0\nand (delta({queued}) > 0\n"
            f"  or {least} > max by (job) (baton_router_requests_capacity))",
            times("5m"),
            TICKET,
            "{{ $value }} requests or more have been waiting, and their number does not fall",
            "requests by rank, preemptions, and what the ranks' memory is used for",
            "baton-router",
        ),
        Alert(
            "BatonHitRateFalling",
            f"job:baton_prefix_hit:ratio_rate30m\n"
            f"  < 0.5 * (job:baton_prefix_hit:ratio_rate6h offset {times('30m')} > 0.05)",
            times("15m"),
            TICKET,
            "the prefix cache saves {{ $value | humanizePercentage }} of prompt tokens, less than "
            "half of what it did",
            "evictions by cause, snapshots skipped, and whether the prompts have changed",
            "baton-memory",
        ),
    ]


def _burns(times: Windows, goals: Objectives) -> list[Alert]:
    """Return the alerts of the error budget, by the two windows of Google's SRE workbook.

    The long window says that much of the month's budget is gone, the short one that it still burns.
    """
    alerts = []
    for metric, title, seconds in (
        ("ttft", "first tokens", goals.ttft_s),
        ("itl", "tokens", goals.itl_s),
    ):
        for factor, long, short, wait, severity in (
            (14.4, "1h", "5m", "2m", PAGE),
            (6.0, "6h", "30m", "15m", PAGE),
            (1.0, "3d", "6h", "1h", TICKET),
        ):
            late = f"job:baton_{metric}_late:ratio_rate"
            most = f"{factor} * {round(1 - goals.share, 6)}"
            name = f"Baton{metric.capitalize()}{'Slow' if severity == PAGE else 'Drifting'}"
            alert = Alert(
                name,
                f"{late}{long} > {most}\nand {late}{short} > {most}",
                times(wait),
                severity,
                f"{{{{ $value | humanizePercentage }}}} of {title} took over {seconds:g} s; the "
                f"objective allows {100 * (1 - goals.share):.4g} %",
                "the parts of TTFT, the queue" if metric == "ttft" else "steps and load by rank",
                "baton-overview",
                long,
            )
            alerts.append(alert)
    return alerts


def _state(times: Windows, goals: Objectives) -> list[Alert]:
    quarantine, window = 'baton_worker_slots{owner="quarantine"}', times("10m")
    return [
        Alert(
            "BatonQuarantineGrowing",
            f"{quarantine} > 0\nand delta({quarantine}[{window}]) >= 0",
            times("10m"),
            TICKET,
            "{{ $value }} hand-offs of {{ $labels.worker }} hold memory that a lost prefill worker "
            "may still write",
            "prefill workers that are stopped or cut off; docs/handoff.md, Quarantine",
            "baton-handoff",
        ),
        Alert(
            "BatonTransfersFailing",
            f"worker:baton_handoff_failures:ratio_rate5m > {goals.failed_share}",
            times("5m"),
            TICKET,
            "{{ $value | humanizePercentage }} of hand-offs to {{ $labels.worker }} failed",
            "the reasons in the worker's log (`hand-off moved`), by prefill worker",
            "baton-handoff",
        ),
        Alert(
            "BatonTransfersSlow",
            f"worker:baton_transfer_seconds:p95_rate5m > {goals.transfer_s}",
            times("5m"),
            TICKET,
            "state reaches {{ $labels.worker }} {{ $value | humanizeDuration }} after the first "
            "token (95th percentile)",
            "the channel in `baton status`, bytes a second, and the network between the two",
            "baton-handoff",
        ),
        Alert(
            "BatonMemoryNearPlan",
            f"worker:baton_pages_busy:ratio > {goals.busy_share}\n"
            f"or worker:baton_slots_busy:ratio > {goals.busy_share}\n"
            "or sum by (job, worker, role) "
            f"(rate(baton_engine_preemptions_total[{times('10m')}])) > 0",
            times("10m"),
            TICKET,
            "{{ $labels.worker }} preempts requests, or has hardly a slot or page left to evict",
            "slots and pages by owner, preemptions; --memory-gb and --mamba-full-memory-ratio",
            "baton-memory",
        ),
    ]


def _certificate(goals: Objectives) -> Alert:
    names = '{__name__=~"baton_(router|worker)_certificate_expiry_seconds"}'
    return Alert(
        "BatonCertificateNearEnd",
        f"{names} < {goals.certificate_days:g} * 86400",
        "0s",
        TICKET,
        "the certificate `{{ $labels.certificate }}` of {{ $labels.instance }} "
        "{{ $labels.worker }} ends in {{ $value | humanizeDuration }}",
        "`baton certs list`; --ssl-certfile is read again when it changes",
        "baton-overview",
    )
