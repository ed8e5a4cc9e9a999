"""The recording rules: ratios and rates that alerts and dashboards share.

Their names are `<level>:<metric>:<operation>`, as Prometheus' documentation advises. A job is one
cluster: rules keep the label `job`, so that one Prometheus can watch several.
"""

from objectives import Objectives
from windows import Windows

BURN_WINDOWS = ("5m", "30m", "1h", "6h", "3d")
"""Both objectives are looked at over each of these."""
HIT_WINDOWS = ("30m", "6h")
_BUSY = 'owner!~"free|cache"'  # the prefix cache gives up what a request needs
_ENDED = 'to=~"complete|failed|expired"'
_FAILED = 'to=~"failed|expired"'


def recording_groups(times: Windows, goals: Objectives) -> list[dict[str, object]]:
    """Return the groups of a rules file."""
    return [
        {"name": "baton-objectives", "rules": _objectives(times, goals)},
        {"name": "baton-cache", "rules": _cache(times)},
        {"name": "baton-queue", "rules": [_queue()]},
        {"name": "baton-workers", "rules": _workers(times)},
    ]


def _rule(name: str, expr: str) -> dict[str, object]:
    return {"record": name, "expr": expr}


def _objectives(times: Windows, goals: Objectives) -> list[dict[str, object]]:
    return [
        _rule(f"job:baton_{metric}_late:ratio_rate{window}", _late(metric, seconds, times(window)))
        for metric, seconds in (("ttft", goals.ttft_s), ("itl", goals.itl_s))
        for window in BURN_WINDOWS
    ]


def _late(metric: str, seconds: float, window: str) -> str:
    """Return the share of observations above `seconds`; NaN while there are none."""
    name = f"baton_router_{metric}_seconds"
    return (
        f'1 - sum by (job) (rate({name}_bucket{{le="{seconds}"}}[{window}]))\n'
        f"  / sum by (job) (rate({name}_count[{window}]))"
    )


def _cache(times: Windows) -> list[dict[str, object]]:
    return [
        _rule(
            f"job:baton_prefix_hit:ratio_rate{window}",
            f"sum by (job) (rate(baton_router_cached_tokens_total[{times(window)}]))\n"
            f'  / sum by (job) (rate(baton_router_tokens_total{{kind="prompt"}}[{times(window)}]))',
        )
        for window in HIT_WINDOWS
    ]


def _queue() -> dict[str, object]:
    return _rule("job:baton_requests_queued:sum", "sum by (job) (baton_router_requests_queued)")


def _workers(times: Windows) -> list[dict[str, object]]:
    window, by = times("5m"), "by (job, worker, role)"
    moves = "baton_worker_incoming_handoff_transitions_total"
    return [
        *(
            _rule(
                f"worker:baton_{pool}_busy:ratio",
                f"sum {by} (baton_worker_{pool}{{{_BUSY}}})\n  / sum {by} (baton_worker_{pool})",
            )
            for pool in ("slots", "pages")
        ),
        _rule(
            "worker:baton_handoff_failures:ratio_rate5m",
            f"sum {by} (rate({moves}{{{_FAILED}}}[{window}]))\n"
            f"  / sum {by} (rate({moves}{{{_ENDED}}}[{window}]))",
        ),
        _rule(
            "worker:baton_transfer_seconds:p95_rate5m",
            "histogram_quantile(0.95,\n"
            f"  sum by (job, worker, le) (rate(baton_worker_transfer_seconds_bucket[{window}])))",
        ),
    ]
