"""The metrics that vLLM names."""

from baton.rpc.metric_aliases.alias import Alias, Samples, counter, gauge, histogram, share
from baton.rpc.metric_aliases.figures import Figures, Latency

REASONS = {"stop": "stop", "length": "length", "abort": "abort", "cancelled": "abort"}
"""vLLM's finish reason for each outcome of ours; every other outcome is an `error`."""
FINISHED = ("stop", "length", "abort", "error")
MOST_DRAFTS = 7
"""Places of drafts in a row that have a series from the start."""


def _finished(figures: Figures) -> Samples:
    counts = dict.fromkeys(FINISHED, 0)  # a rate needs the 0 before the first request
    for outcome, count in figures.served.outcomes.items():
        counts[REASONS.get(outcome, "error")] += count
    return [({"finished_reason": reason}, count) for reason, count in counts.items()]


def _cache_config(figures: Figures) -> Samples:
    load = figures.load
    return [({"block_size": str(load.page_size), "num_gpu_blocks": str(load.pages)}, 1.0)]


def _accepted_by_place(figures: Figures) -> Samples:
    places = max(MOST_DRAFTS, len(figures.totals.accepted_lengths) - 1)
    return [({"position": str(at)}, figures.totals.accepted_at(at)) for at in range(places)]


def _no_adapters(figures: Figures) -> Samples:
    labels = {"max_lora": "0", "waiting_lora_adapters": "", "running_lora_adapters": ""}
    return [(labels, 0.0)]


def _pages_held(figures: Figures) -> float:
    return share(figures.load.pages_held, figures.load.pages)


VLLM = (
    gauge("vllm:num_requests_running", "Requests that take part in steps.",
          lambda f: f.load.running),
    gauge("vllm:num_requests_waiting",
          "Requests that wait: at the router, and for the engines.", lambda f: f.load.waiting),
    gauge("vllm:kv_cache_usage_perc",
          "Share of the KV pages that requests hold, from 0 to 1; pages that are only cached are "
          "not held.", _pages_held),
    gauge("vllm:gpu_cache_usage_perc", "The former name of vllm:kv_cache_usage_perc.", _pages_held),
    gauge("vllm:cpu_cache_usage_perc", "Share of the KV pages of the hosts' tiers in use; 0: there "
          "are none.", lambda f: share(f.load.host_pages_used, f.load.host_pages)),
    Alias("vllm:cache_config_info", "gauge", "Always 1; the labels have the tokens of a KV page "
          "and the number of pages.", _cache_config, labels=("block_size", "num_gpu_blocks")),
    Alias("vllm:lora_requests_info", "gauge",
          "Always 0; the labels say that there are no adapters.", _no_adapters,
          labels=("max_lora", "waiting_lora_adapters", "running_lora_adapters")),
    counter("vllm:prompt_tokens_total",
            "Tokens of prompts, cached ones included; on a decode worker those that it adopted.",
            lambda f: f.served.prompt_tokens),
    counter("vllm:generation_tokens_total", "Output tokens.", lambda f: f.served.output_tokens),
    counter("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked up in the "
            "prefix cache: all.", lambda f: f.served.prompt_tokens),
    counter("vllm:prefix_cache_hits_total", "Tokens of prompts that were cached, with the state "
            "of their recurrent layers; on a decode worker, KV that was not transferred.",
            lambda f: f.served.cached_tokens),
    counter("vllm:external_prefix_cache_queries_total", "Tokens of prompts that were not cached on "
            "their worker.", lambda f: f.totals.uncached_tokens),
    counter("vllm:external_prefix_cache_hits_total", "Of them, those that a decode worker adopted "
            "from a prefill worker.", lambda f: f.totals.adopted_tokens),
    counter("vllm:num_preemptions_total", "Requests that gave up their memory for others.",
            lambda f: f.totals.preemptions),
    counter("vllm:spec_decode_num_drafts_total", "Rows of steps that verified draft tokens.",
            lambda f: f.totals.draft_rows),
    counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens that were verified.",
            lambda f: f.totals.drafts_proposed),
    counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted.",
            lambda f: f.totals.drafts_accepted),
    Alias("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
          "Rows whose draft at this place, from 0, was accepted.", _accepted_by_place,
          labels=("position",)),
    Alias("vllm:request_success_total", "counter", "Requests that ended, by vLLM's finish reasons; "
          "an error code is error, a client that left is abort.", _finished,
          labels=("finished_reason",)),
    histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", Latency.TTFT),
    histogram("vllm:inter_token_latency_seconds", "Time between successive output tokens.",
              Latency.ITL),
    histogram("vllm:time_per_output_token_seconds",
              "The former name of vllm:inter_token_latency_seconds.", Latency.ITL),
    histogram("vllm:e2e_request_latency_seconds", "From arrival to the end of the answer.",
              Latency.E2E),
    histogram("vllm:request_queue_time_seconds", "At the router, from arrival to dispatch; on a "
              "worker, from arrival there to the first chunk.", Latency.QUEUE),
    histogram("vllm:request_prefill_time_seconds", "From a prompt's first chunk to its first "
              "token.", Latency.PREFILL),
)  # fmt: skip
