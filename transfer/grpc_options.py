"""How every gRPC connection between workers is set up."""

OPTIONS: tuple[tuple[str, int], ...] = (
    # A peer that comes back is found again in a second, not in gRPC's default two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name also how long one attempt to connect may take: on a full machine a peer's
    # first frame comes late.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A machine that is lost says no goodbye: without these its connections, and the calls that wait
    # on them, would stay for ever. Pings need the other side's leave; every server here gives it.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A ping of gRPC's own (it measures the bandwidth) that is under way then stands for the
    # keepalive's, with a timeout of its own: a minute, if it is not told.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_http_proxy", 0),
    # Prompts and their logprobs travel in one message.
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)

DATA_OPTIONS: tuple[tuple[str, int], ...] = (
    *OPTIONS,
    # A connection of its own: a gigabyte of state must not queue in front of tokens.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.write_buffer_size", 8 << 20),
    ("grpc.http2.lookahead_bytes", 16 << 20),
)
