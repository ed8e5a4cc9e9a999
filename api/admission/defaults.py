"""Defaults of a router's options. Its import needs no server."""

MAX_QUEUED = 256
MAX_QUEUED_TOKENS = 1 << 20
REQUEST_TIMEOUT_S = 3600.0
WORKER_WAIT_S = 30.0
KEY_SLOWDOWN = 1.4
PING_S = 10.0
"""The silence after which a stream sends a ping. Proxies cut connections that are silent for 30 to
60 s."""
MAX_JOINED_TOKENS = 256
"""An event with this many tokens is not extended further, because each extension copies it."""
