"""The Grafana dashboards. `make monitoring` writes them to monitoring/grafana/dashboards."""

from pathlib import Path

from grafana_json import Dashboard, Panel, Row, build
from objectives import Objectives
from queries import (
    Query,
    by_worker,
    in_time,
    mean_parts,
    of,
    percentile_by,
    percentiles,
    rate,
    rate_by,
)

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "grafana/dashboards"
GOALS = Objectives()
DECODE, PREFILL = 'role="decode"', 'role="prefill"'
USED = 'owner!="free"'

OVERVIEW = Dashboard(
    "baton-overview",
    "Baton / Overview",
    [
        Row("Now", [
            Panel("Requests", "reqps", [Query(rate("baton_router_requests_total"))], single=True),
            Panel("Output tokens", "ops",
                  [Query(rate("baton_router_itl_seconds_count"))],
                  "Tokens after the first of each answer, as they are streamed.", single=True),
            Panel("Running and queued", "none",
                  [Query(f"sum ({of('baton_router_requests_active')})")], single=True),
            Panel("Alerts", "none",
                  [Query('count(ALERTS{alertname=~"Baton.*", alertstate="firing"}) or vector(0)')],
                  single=True),
        ]),
        Row("Objectives", [
            Panel("Goodput of first tokens", "ops", [
                Query(in_time("ttft", GOALS.ttft_s), f"within {GOALS.ttft_s:g} s"),
                Query(rate("baton_router_ttft_seconds_count"), "all"),
            ], "First tokens that came within the objective, beside all of them."),
            Panel("Goodput of tokens", "ops", [
                Query(in_time("itl", GOALS.itl_s), f"within {GOALS.itl_s:g} s"),
                Query(rate("baton_router_itl_seconds_count"), "all"),
            ], "Tokens that came within the objective after the one before, beside all of them."),
            Panel("Late first tokens", "percentunit", [
                Query(of(f"job:baton_ttft_late:ratio_rate{w}"), w) for w in ("5m", "1h", "6h")
            ], f"The objective allows {100 * (1 - GOALS.share):.4g} %."),
            Panel("Late tokens", "percentunit", [
                Query(of(f"job:baton_itl_late:ratio_rate{w}"), w) for w in ("5m", "1h", "6h")
            ], f"The objective allows {100 * (1 - GOALS.share):.4g} %."),
        ]),
        Row("Latency", [
            Panel("TTFT", "s", percentiles("baton_router_ttft_seconds")),
            Panel("TTFT by part", "s",
                  mean_parts("baton_router_ttft_part_seconds"),
                  "Mean of each part; their sum is the mean TTFT.", stacked=True),
            Panel("Inter-token latency", "s", percentiles("baton_router_itl_seconds")),
            Panel("First to second token by part", "s",
                  mean_parts("baton_router_second_token_part_seconds"), stacked=True),
            Panel("Arrival to end", "s", percentiles("baton_router_e2e_seconds")),
        ]),
        Row("Traffic", [
            Panel("Ends by outcome", "reqps", rate_by("baton_router_requests_total", "outcome"),
                  stacked=True),
            Panel("Prompt tokens", "ops", [
                Query(rate("baton_router_tokens_total", 'kind="prompt"'), "all"),
                Query(rate("baton_router_cached_tokens_total"), "cached"),
            ]),
            Panel("Refusals by reason", "reqps", rate_by("baton_router_refusals_total", "reason")),
            Panel("Connections", "none", [
                Query(f"sum ({of('baton_router_http_connections')})", "HTTP"),
                Query(f"sum ({of('baton_router_grpc_streams')})", "gRPC calls"),
            ]),
        ]),
        Row("Health", [
            Panel("Workers", "none",
                  [Query(f"max by (role) ({of('baton_router_workers')})", "{{role}}")]),
            Panel("Targets that answer", "none",
                  [Query(f"sum by (baton_role) ({of('up')})", "{{baton_role}}")]),
            Panel("Engine lag", "s", by_worker("baton_worker_engine_lag_seconds")),
            Panel("Certificates end in", "s", [
                Query(f"min by (certificate) ({of('baton_router_certificate_expiry_seconds')})",
                      "router, {{certificate}}"),
                Query(f"min ({of('baton_worker_certificate_expiry_seconds')})", "workers"),
            ]),
        ]),
    ],
)  # fmt: skip

HANDOFF = Dashboard(
    "baton-handoff",
    "Baton / Hand-off",
    [
        Row("States", [
            Panel("Hand-offs to decode workers", "none", [
                Query(f"sum by (state) ({of('baton_worker_incoming_handoffs')}) > 0", "{{state}}")
            ], stacked=True),
            Panel("Hand-offs from prefill workers", "none", [
                Query(f"sum by (state) ({of('baton_worker_outgoing_handoffs')}) > 0", "{{state}}")
            ], stacked=True),
            Panel("Ends", "ops", [
                Query(rate("baton_worker_incoming_handoff_transitions_total",
                           'to=~"active|failed|cancelled|expired"', by="to"), "{{to}}")
            ], stacked=True),
            Panel("Failed or expired", "percentunit", [
                Query(of("worker:baton_handoff_failures:ratio_rate5m"), "{{worker}}")
            ]),
        ]),
        Row("Bytes", [
            Panel("Received", "Bps", rate_by("baton_worker_received_bytes_total", "kind"),
                  "Bytes a second over all workers.", stacked=True),
            Panel("Sent by worker", "Bps", rate_by("baton_worker_sent_bytes_total", "worker")),
            Panel("Speed of one hand-off", "Bps", [
                Query(f"{rate('baton_worker_received_bytes_total', DECODE, by='worker')}\n"
                      f"  / {rate('baton_worker_handoff_writing_seconds_sum', by='worker')}",
                      "{{worker}}")
            ], "Bytes by the time from the first segment to the last. A lower bound of the "
               "channel's speed, because most bytes leave while the next chunk is computed."),
            Panel("Bytes of one hand-off", "bytes", [
                Query(f"{rate('baton_worker_received_bytes_total', DECODE)}\n"
                      f"  / {rate('baton_worker_handoff_writing_seconds_count')}", "mean")
            ]),
        ]),
        Row("Times", [
            Panel("Transfer after the first token", "s",
                  percentiles("baton_worker_transfer_seconds", which=(0.5, 0.95))),
            Panel("First segment to last byte", "s",
                  percentiles("baton_worker_handoff_writing_seconds", which=(0.5, 0.95))),
            Panel("Wait for the first decode step", "s",
                  percentiles("baton_worker_decode_wait_seconds", which=(0.5, 0.95))),
            Panel("Last prefill layer to first decode step", "s",
                  percentiles("baton_worker_prefill_to_decode_seconds", which=(0.5, 0.95))),
        ]),
        Row("Quarantine and prefixes", [
            Panel("Slots in quarantine", "none",
                  by_worker("baton_worker_slots", 'owner="quarantine"')),
            Panel("Pages in quarantine", "none",
                  by_worker("baton_worker_pages", 'owner="quarantine"')),
            Panel("Prefixes fetched", "ops", rate_by("baton_worker_prefix_fetches_total",
                                                     "outcome"), stacked=True),
            Panel("Prompt tokens whose KV was not sent", "ops",
                  rate_by("baton_engine_transfer_hit_tokens_total", "worker", DECODE)),
        ]),
    ],
)  # fmt: skip

MEMORY = Dashboard(
    "baton-memory",
    "Baton / Memory",
    [
        Row("Slots and pages", [
            Panel("Slots by owner, prefill", "none", [
                Query(f"sum by (owner) ({of('baton_worker_slots', PREFILL)})", "{{owner}}")
            ], stacked=True),
            Panel("Slots by owner, decode", "none", [
                Query(f"sum by (owner) ({of('baton_worker_slots', DECODE)})", "{{owner}}")
            ], stacked=True),
            Panel("Pages by owner, prefill", "none", [
                Query(f"sum by (owner) ({of('baton_worker_pages', PREFILL)})", "{{owner}}")
            ], stacked=True),
            Panel("Pages by owner, decode", "none", [
                Query(f"sum by (owner) ({of('baton_worker_pages', DECODE)})", "{{owner}}")
            ], stacked=True),
            Panel("Slots that cannot be evicted", "percentunit",
                  [Query(of("worker:baton_slots_busy:ratio"), "{{worker}}")]),
            Panel("Pages that cannot be evicted", "percentunit",
                  [Query(of("worker:baton_pages_busy:ratio"), "{{worker}}")]),
        ]),
        Row("Plan and use", [
            Panel("Planned by part", "bytes", [
                Query(f"max by (part) ({of('baton_worker_memory_planned_bytes')})", "{{part}}")
            ], "Of the worker with the largest part.", stacked=True),
            Panel("Used", "bytes", by_worker("baton_worker_memory_used_bytes"),
                  "The process's resident memory, Python and torch included, or what torch holds "
                  "on a GPU."),
            Panel("Budget", "bytes", by_worker("baton_worker_memory_budget_bytes")),
            Panel("Preemptions", "ops", rate_by("baton_engine_preemptions_total", "worker")),
        ]),
        Row("Prefix cache", [
            Panel("Prompt tokens found in the cache", "percentunit", [
                Query(f"{rate(f'baton_engine_{kind}_hit_tokens_total')}\n"
                      f"  / {rate('baton_engine_prompt_tokens_total')}", legend)
                for kind, legend in (("kv", "KV"), ("state", "state and KV: not computed"))
            ]),
            Panel("Prompt tokens saved", "percentunit", [
                Query(of(f"job:baton_prefix_hit:ratio_rate{w}"), w) for w in ("30m", "6h")
            ], "By the router's count of finished requests."),
            Panel("Snapshots", "ops", [
                Query(rate(f"baton_engine_snapshots_{event}_total"), event)
                for event in ("written", "donated", "skipped", "evicted")
            ]),
            Panel("Evicted for lack of", "Bps", [
                Query(rate(f"baton_engine_{pool}_shortage_bytes_total"), f"{pool}s")
                for pool in ("slot", "page")
            ], "See docs/metrics.md, Short of slots or of pages."),
            Panel("Pages evicted", "ops", rate_by("baton_engine_pages_evicted_total", "worker")),
            Panel("Admissions with more KV than state", "ops",
                  rate_by("baton_engine_branch_points_total", "worker")),
        ]),
        Row("The host's tier", [
            Panel("In use", "percentunit", [
                Query(f"sum ({of(f'baton_worker_host_{kind}', USED)})\n"
                      f"  / sum ({of(f'baton_worker_host_{kind}')})", kind)
                for kind in ("slots", "pages")
            ], "Of the workers with --host-cache-gb."),
            Panel("Prompt tokens spared", "percentunit", [
                Query(f"{rate('baton_engine_host_hit_tokens_total')}\n"
                      f"  / {rate('baton_engine_prompt_tokens_total')}", "of all computed there")
            ]),
            Panel("Prefixes on their way", "none", [
                Query(f"sum by (kind) ({of('baton_worker_host_copies')})", "{{kind}}")
            ]),
            Panel("Copies given up and failed", "ops", [
                Query(rate(f"baton_engine_host_{event}_total"), event)
                for event in ("recalls", "failures")
            ]),
        ]),
        Row("Files of prefixes", [
            Panel("Bytes of files", "bytes", [
                Query(f"max ({of('baton_worker_file_bytes')})", "in use"),
                Query(f"max ({of('baton_worker_file_limit_bytes')})", "limit"),
            ], "Of --file-cache. Workers that share a folder all report the whole of it."),
            Panel("Prompt tokens spared by files", "percentunit", [
                Query(f"{rate('baton_engine_file_hit_tokens_total')}\n"
                      f"  / {rate('baton_engine_prompt_tokens_total')}", "of all computed there")
            ]),
            Panel("Prefixes to and from files", "none", [
                Query(f"sum by (kind) ({of('baton_worker_file_copies')})", "{{kind}}")
            ]),
            Panel("Written, missed and failed", "ops", [
                Query(rate(f"baton_engine_{event}_total"), name)
                for event, name in (("files_written", "written"), ("file_misses", "misses"),
                                    ("file_failures", "failures"))
            ]),
        ]),
    ],
)  # fmt: skip

ROUTER = Dashboard(
    "baton-router",
    "Baton / Router",
    [
        Row("Queue", [
            Panel("Requests", "none", [
                Query(f"sum ({of('baton_router_requests_active')})", "active"),
                Query(f"sum ({of('baton_router_requests_queued')})", "queued"),
                Query(f"max ({of('baton_router_requests_capacity')})", "capacity of the ranks"),
            ]),
            Panel("Arrival to dispatch", "s",
                  percentiles("baton_router_queue_seconds", which=(0.5, 0.95))),
            Panel("Wait on the prefill worker", "s",
                  percentiles("baton_worker_prefill_queue_seconds", which=(0.5, 0.95))),
            Panel("Waiting in engines", "none", by_worker("baton_worker_requests_waiting")),
        ]),
        Row("Placement", [
            Panel("Placements by rank", "ops", rate_by("baton_router_placements_total", "worker"),
                  stacked=True),
            Panel("Placements by prefill worker", "ops",
                  rate_by("baton_router_prefill_placements_total", "worker"), stacked=True),
            Panel("Requests by rank", "none", by_worker("baton_router_rank_requests")),
            Panel("Placed where a state was known", "percentunit", [
                Query(f"{rate('baton_router_state_hits_total')}\n"
                      f"  / {rate('baton_router_placements_total')}", "share of attempts")
            ]),
        ]),
        Row("Losses", [
            Panel("Retries by the rank that was lost", "ops",
                  rate_by("baton_router_retries_total", "worker")),
            Panel("Migrations of running answers", "ops",
                  rate_by("baton_router_migrations_total", "worker")),
            Panel("Workers lost in the last hour", "none", [
                Query(f"max by (worker) (increase({of('baton_router_worker_losses_total')}[1h]))",
                      "{{worker}}")
            ]),
            Panel("Workers", "none",
                  [Query(f"max by (role) ({of('baton_router_workers')})", "{{role}}")]),
        ]),
        Row("API keys", [
            Panel("Requests by key", "reqps", rate_by("baton_router_key_requests_total", "key")),
            Panel("Tokens by key", "ops", rate_by("baton_router_key_tokens_total", "key, kind")),
            Panel("Refused by a cap", "reqps",
                  rate_by("baton_router_key_refusals_total", "key, cap")),
        ]),
    ],
)  # fmt: skip

_SAMPLED = rate("baton_worker_tokens_total", DECODE, 'kind="output"', by="worker")
DECODE_RANKS = Dashboard(
    "baton-decode",
    "Baton / Data-parallel decode",
    [
        Row("Load", [
            Panel("Tokens by rank", "ops", [Query(_SAMPLED, "{{worker}}")], stacked=True),
            Panel("Requests by rank", "none", by_worker("baton_worker_requests_running", DECODE)),
            Panel("Waiting by rank", "none", by_worker("baton_worker_requests_waiting", DECODE)),
            Panel("Imbalance", "none", [
                Query(f"max({_SAMPLED}) / avg({_SAMPLED})", "tokens"),
                Query(f"max({of('baton_worker_requests_running', DECODE)})\n"
                      f"  / avg({of('baton_worker_requests_running', DECODE)})", "requests"),
            ], "The busiest rank beside the mean: 1 is even."),
        ]),
        Row("Steps", [
            Panel("Steps by rank", "ops", rate_by("baton_engine_steps_total", "worker", DECODE)),
            Panel("Step, median", "s",
                  [percentile_by("baton_worker_step_seconds", "worker", 0.5, DECODE)]),
            Panel("Step, 95th percentile", "s",
                  [percentile_by("baton_worker_step_seconds", "worker", 0.95, DECODE)]),
            Panel("Tokens of a step", "none", [
                Query(f"{_SAMPLED}\n  / {rate('baton_engine_steps_total', DECODE, by='worker')}",
                      "{{worker}}")
            ]),
            Panel("Host time of planning a step", "s", [
                Query(f"{rate('baton_engine_schedule_seconds_total', DECODE, by='worker')}\n"
                      f"  / {rate('baton_engine_steps_total', DECODE, by='worker')}", "{{worker}}")
            ]),
            Panel("First decode step", "s",
                  [percentile_by("baton_worker_first_decode_step_seconds", "worker", 0.5, DECODE)]),
        ]),
        Row("Balance", [
            Panel("Placements by group", "ops", rate_by("baton_router_placements_total",
                                                        "dp_group"), stacked=True),
            Panel("Adopted prompt tokens by rank", "ops",
                  rate_by("baton_engine_adopted_tokens_total", "worker", DECODE)),
            Panel("Free slots by rank", "none",
                  by_worker("baton_worker_slots", DECODE, 'owner="free"')),
            Panel("Engine lag by rank", "s", by_worker("baton_worker_engine_lag_seconds", DECODE)),
        ]),
        Row("Draft tokens", [
            Panel("Accepted by proposer", "percentunit", [
                Query(f"{rate('baton_engine_drafts_accepted_total', by='proposer')}\n"
                      f"  / {rate('baton_engine_drafts_proposed_total', by='proposer')}",
                      "{{proposer}}")
            ]),
            Panel("Accepted by position", "percentunit", [
                Query(f"{rate('baton_engine_drafts_accepted_total', by='position')}\n"
                      f"  / {rate('baton_engine_drafts_proposed_total', by='position')}",
                      "{{position}}")
            ], "Positions count from 0, the first draft of a row."),
            Panel("Tokens of a row with drafts", "none", [
                Query(f"{rate('baton_engine_accepted_length_tokens_sum')}\n"
                      f"  / {rate('baton_engine_draft_rows_total')}", "mean")
            ]),
            Panel("Verified by proposer", "ops",
                  rate_by("baton_engine_drafts_proposed_total", "proposer"), stacked=True),
        ]),
    ],
)  # fmt: skip

DASHBOARDS = (OVERVIEW, HANDOFF, MEMORY, ROUTER, DECODE_RANKS)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for spec in DASHBOARDS:
        (FOLDER / f"{spec.uid}.json").write_text(build(spec))


if __name__ == "__main__":
    main()
