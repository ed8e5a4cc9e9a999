"""The benchmarks of `baton bench` by name, listed without importing them."""

BENCHES = {
    "serve": (
        "baton.bench.cluster.serve:serve",
        "A whole cluster under streaming requests: tokens a second, TTFT, ITL, bytes moved.",
    ),
    "trace": (
        "baton.bench.cluster.trace:trace",
        "A whole cluster under a published trace's arrivals and shared prompts, beside peers.",
    ),
    "weka": (
        "baton.bench.request_replay.weka:weka",
        "Nothing is measured: a request dump as traces that AIPerf and guidellm replay.",
    ),
    "scale": (
        "baton.bench.cluster.scale:scale",
        "Decode ranks, one and several, against as many bare engine processes.",
    ),
    "sessions": (
        "baton.bench.sessions.sessions:sessions",
        "A router's CPU time a token with many ranks of canned tokens, and routers for 64 ranks.",
    ),
    "router": (
        "baton.bench.router.router:router",
        "A router's added latency, its rates and its decisions, beside SGLang's router.",
    ),
    "decode": (
        "baton.bench.one_engine.decode:decode",
        "One engine's decode steps by batch size, against memory, arithmetic and transformers.",
    ),
    "tracking": (
        "baton.bench.one_engine.tracking:tracking",
        "Decode steps with frequent and with rare snapshots, in turns.",
    ),
    "speculate": (
        "baton.bench.one_engine.speculate:speculate",
        "Answers with draft tokens against plain decoding, by how many drafts are right.",
    ),
    "tp": (
        "baton.bench.one_engine.tp:tp",
        "A replica of several ranks beside one rank with as many threads; the ranks' sums.",
    ),
    "prefill": (
        "baton.bench.one_engine.prefill:prefill",
        "One engine's prompts and time to first token, against arithmetic and transformers.",
    ),
    "transfer": (
        "baton.bench.transfer.transfer:transfer",
        "State between two processes by each channel, against raw NIXL, raw gRPC and a copy.",
    ),
    "tiers": (
        "baton.bench.tiers.tiers:tiers",
        "Copies of prefixes into the host's tier and files, and back, beside plain ones and steps.",
    ),
    "load": (
        "baton.bench.loading.loading:load",
        "A sharded checkpoint, from files to memory, against the disk; and its peak memory.",
    ),
    "prefix": (
        "baton.bench.prefix.prefix:prefix",
        "A trace's prefix hit rate by memory budget; no model runs.",
    ),
    "state_ops": (
        "baton.bench.state_ops.state_ops:state_ops",
        "Slots, prefix cache and scheduling on the host; no model runs.",
    ),
}
