"""The metrics that SGLang names."""

from baton.rpc.metric_aliases.alias import Alias, Samples, counter, gauge, histogram, share
from baton.rpc.metric_aliases.figures import Figures, Latency


def _cache_config(figures: Figures) -> Samples:
    load = figures.load
    return [({"page_size": str(load.page_size), "num_pages": str(load.pages)}, 1.0)]


def _cached(figures: Figures) -> Samples:
    served = figures.served
    host, file = served.cached_host_tokens, served.cached_file_tokens
    found = {"device": served.cached_tokens - host - file, "host": host, "file": file}
    return [({"cache_source": source}, tokens) for source, tokens in found.items()]


SGLANG = (
    gauge("sglang:num_running_reqs", "Requests that take part in steps.", lambda f: f.load.running),
    gauge("sglang:num_queue_reqs", "Requests that wait: at the router, and for the engines.",
          lambda f: f.load.waiting),
    gauge("sglang:token_usage", "Share of the KV pages or of the state slots that requests hold, "
          "the larger, from 0 to 1.", lambda f: f.load.memory_held),
    gauge("sglang:full_token_usage", "Share of the KV pages that requests hold.",
          lambda f: share(f.load.pages_held, f.load.pages)),
    gauge("sglang:mamba_usage", "Share of the state slots that requests hold.",
          lambda f: share(f.load.slots_held, f.load.slots)),
    gauge("sglang:num_used_tokens", "Tokens of the KV pages that requests hold.",
          lambda f: f.load.pages_held * f.load.page_size),
    gauge("sglang:max_total_num_tokens", "Tokens of all KV pages.",
          lambda f: f.load.pages * f.load.page_size),
    gauge("sglang:page_size", "Tokens of a KV page.", lambda f: f.load.page_size),
    gauge("sglang:num_pages", "KV pages.", lambda f: f.load.pages),
    Alias("sglang:cache_config_info", "gauge", "Always 1; the labels have the tokens of a KV page "
          "and the number of pages.", _cache_config, labels=("page_size", "num_pages")),
    gauge("sglang:hicache_host_used_tokens", "Tokens of the KV pages in use in the hosts' tiers.",
          lambda f: f.load.host_pages_used * f.load.page_size),
    gauge("sglang:hicache_host_total_tokens", "Tokens of all KV pages of the hosts' tiers.",
          lambda f: f.load.host_pages * f.load.page_size),
    gauge("sglang:cache_hit_rate", "Share of the tokens of all prompts since the start that were "
          "cached.", lambda f: share(f.served.cached_tokens, f.served.prompt_tokens)),
    counter("sglang:prompt_tokens_total",
            "Tokens of prompts, cached ones included; on a decode worker those that it adopted.",
            lambda f: f.served.prompt_tokens),
    counter("sglang:generation_tokens_total", "Output tokens.", lambda f: f.served.output_tokens),
    Alias("sglang:cached_tokens_total", "counter", "Tokens of prompts that were cached, with the "
          "state of their recurrent layers, by the memory that had them; on a decode worker, KV "
          "that was not transferred is the device's.", _cached, labels=("cache_source",)),
    counter("sglang:num_requests_total", "Requests that ended.",
            lambda f: sum(f.served.outcomes.values())),
    counter("sglang:num_retracted_reqs_total", "Requests that gave up their memory for others.",
            lambda f: f.totals.preemptions),
    gauge("sglang:spec_accept_length", "Tokens that a row with drafts gave its answer, the mean "
          "since the start; 0: no row had drafts.", lambda f: f.totals.accept_length),
    gauge("sglang:spec_accept_rate", "Share of the draft tokens since the start that were "
          "accepted.", lambda f: share(f.totals.drafts_accepted, f.totals.drafts_proposed)),
    histogram("sglang:time_to_first_token_seconds", "From arrival to the first token.",
              Latency.TTFT),
    histogram("sglang:inter_token_latency_seconds", "Time between successive output tokens.",
              Latency.ITL),
    histogram("sglang:e2e_request_latency_seconds", "From arrival to the end of the answer.",
              Latency.E2E),
    histogram("sglang:queue_time_seconds", "At the router, from arrival to dispatch; on a worker, "
              "from arrival there to the first chunk.", Latency.QUEUE),
)  # fmt: skip
