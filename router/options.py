"""The options of a router. Its import needs neither gRPC nor an HTTP server."""

from dataclasses import dataclass, field

from baton.api.access.client_limits import MAX_BODY_BYTES
from baton.api.admission.defaults import (
    KEY_SLOWDOWN,
    MAX_QUEUED,
    MAX_QUEUED_TOKENS,
    REQUEST_TIMEOUT_S,
    WORKER_WAIT_S,
)
from baton.api.server.server_options import ClientServerOptions
from baton.core.latency_target import LatencyTarget
from baton.core.options import Group, Number, TokensOr, Whole, Words, option
from baton.core.telemetry_options import TelemetryOptions
from baton.router.dump.dump_options import DumpOptions
from baton.router.policies.registry import POLICIES
from baton.rpc.lease_options import LeaseOptions

_MOST_BODY_MB = 2047  # gRPC counts a message's bytes in a signed 32-bit number


# fmt: off
@dataclass(frozen=True, kw_only=True)
class RouterOptions(ClientServerOptions, LatencyTarget, LeaseOptions):
    """The options of a router, each declared once, but where clients reach it."""

    internal_host: str = option(
        "127.0.0.1", Group.INSIDE,
        "Address at which workers register with the router. They and the router show "
        "certificates. On a Ray that is joined, loopback stands for the address by which the "
        "router's host joined it; any other address keeps the routers on this host.")
    internal_port: int = option(
        0, Group.INSIDE, "Port of --internal-host; 0: any free one.", Whole(0, 65535))
    policy: str = option(
        "prefix_aware", Group.ROUTING, "Policy by which the router places requests.",
        Words({name: name for name in sorted(POLICIES)}))
    prefill_here: int | None = option(
        None, Group.ROUTING,
        "Prompts that their decode worker computes itself: where those that wait gain more time "
        "than its answers lose, by measured speeds (auto); none (off); or, by what is queued "
        "alone, those of at most so many tokens without what is cached.",
        TokensOr({"auto": None, "off": 0}))
    max_queued: int = option(
        MAX_QUEUED, Group.ROUTING,
        "Most requests beyond those that the decode workers run at once; further ones are answered "
        "with 429.", Whole(0), names=("--max-queued-requests",))
    max_queued_tokens: int = option(
        MAX_QUEUED_TOKENS, Group.ROUTING,
        "Most tokens of requests that wait at the router, prompts and up to 1,024 of each answer; "
        "further requests are answered with 429. One alone may have more.", Whole(0))
    key_slowdown: float = option(
        KEY_SLOWDOWN, Group.ROUTING,
        "How much longer one API key may make the decode steps of others, compared with their own "
        "requests alone; requests beyond that wait at the router. Each key may have one request, "
        "and a key that is alone is not bounded. 0: no bound.", Number(0, over=1))
    worker_wait_s: float = option(
        WORKER_WAIT_S, Group.ROUTING,
        "Seconds that a request waits while no prefill or no decode worker is ready; then it is "
        "answered with 503.", Number(0, unit="seconds"), names=("--worker-wait",))
    max_body_bytes: int = option(
        MAX_BODY_BYTES, Group.ANSWERS,
        "Largest request that the router reads, over HTTP or gRPC, in MiB.",
        Whole(1, _MOST_BODY_MB), names=("--max-body-mb",), factor=1 << 20)
    request_timeout_s: float = option(
        REQUEST_TIMEOUT_S, Group.ANSWERS, "Most seconds from a request's arrival to its end.",
        Number(0, above=True, unit="seconds"), names=("--request-timeout",))
    dump: DumpOptions = field(default_factory=DumpOptions)
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
# fmt: on
