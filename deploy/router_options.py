"""The command-line options of a router, of `baton serve` and `baton router`."""

from collections.abc import Callable
from typing import Any

import click

from baton.api.access.client_limits import MAX_BODY_BYTES
from baton.api.admission.defaults import (
    KEY_SLOWDOWN,
    MAX_QUEUED,
    MAX_QUEUED_TOKENS,
    PING_S,
    REQUEST_TIMEOUT_S,
    WORKER_WAIT_S,
)
from baton.api.fields.request_fields import UnknownFields
from baton.deploy.access_options import (
    access_options,
    client_tls_options,
    insecure_option,
)
from baton.deploy.errors import StartError
from baton.deploy.limit_options import limit_options
from baton.deploy.number_types import Ratio, Seconds, Slowdown, TokensOrWord
from baton.deploy.record_options import dump_options, telemetry_options
from baton.deploy.template_options import template_options
from baton.router.policies.registry import POLICIES
from baton.rpc.lease import DEFAULT_LEASE_MS
from baton.text.generation_config import SamplingDefaults

_PORT = click.IntRange(0, 65535)
_MIN_LEASE_S = 1  # heartbeats and reports of a shorter one would come too often
_MAX_LEASE_S = 3600
_MAX_BODY_MB = 2047  # gRPC counts a message's bytes in a signed 32-bit number

_ROUTER = (
    click.option("--policy", type=click.Choice(sorted(POLICIES)), default="prefix_aware",
                 show_default=True, help="Policy by which the router places requests."),
    click.option("--prefill-here", type=TokensOrWord({"auto": None, "off": 0}), default="auto",
                 show_default=True,
                 help="Prompts that their decode worker computes itself: where those that wait "
                 "gain more time than its answers lose, by measured speeds (auto); none (off); or, "
                 "by what is queued alone, those of at most so many tokens without what is "
                 "cached."),
    click.option("--max-queued-requests", type=click.IntRange(0), default=MAX_QUEUED,
                 show_default=True,
                 help="Most requests beyond those that the decode workers run at once; further "
                 "ones are answered with 429."),
    click.option("--max-queued-tokens", type=click.IntRange(0), default=MAX_QUEUED_TOKENS,
                 show_default=True,
                 help="Most tokens of requests that wait at the router, prompts and up to 1,024 of "
                 "each answer; further requests are answered with 429. One alone may have more."),
    click.option("--key-slowdown", type=Slowdown(), default=KEY_SLOWDOWN, show_default=True,
                 help="How much longer one API key may make the decode steps of others, compared "
                 "with their own requests alone; requests beyond that wait at the router. "
                 "Each key may have one request, and a key that is alone is not bounded. 0: no "
                 "bound."),
    click.option("--max-body-mb", type=click.IntRange(1, _MAX_BODY_MB),
                 default=MAX_BODY_BYTES >> 20, show_default=True,
                 help="Largest request that the router reads, over HTTP or gRPC, in MiB."),
    click.option("--request-timeout", type=Seconds(0, min_open=True),
                 default=REQUEST_TIMEOUT_S, show_default=True,
                 help="Most seconds from a request's arrival to its end."),
    click.option("--worker-wait", type=Seconds(0), default=WORKER_WAIT_S, show_default=True,
                 help="Seconds that a request waits while no prefill or no decode worker is "
                 "ready; then it is answered with 503."),
    click.option("--served-model-name", default=None,
                 help="Model name in requests and replies; the folder's name when left out. "
                 "Further names follow after commas; * is any name."),
    click.option("--internal-port", type=_PORT, default=0, show_default=True,
                 help="Port of --internal-host; 0: any free one."),
    click.option("--internal-host", default="127.0.0.1", show_default=True,
                 help="Address at which workers register with the router. They and the router "
                 "show certificates. On a Ray that is joined, loopback stands for the address by "
                 "which the router's host joined it; any other address keeps the routers on this "
                 "host."),
)  # fmt: skip
_LISTEN = (
    click.option("--host", default="127.0.0.1", show_default=True,
                 help="Address that the router listens on; 0.0.0.0 for every network. On a Ray "
                 "that is joined, routers with 0.0.0.0 or :: may run on any host, others on "
                 "this one."),
    insecure_option,
    click.option("--http-port", "--port", "http_port", type=_PORT, default=8000, show_default=True,
                 help="Port of the router's HTTP server; 0: any free one. Also --port."),
    click.option("--grpc-port", type=_PORT, default=50051, show_default=True,
                 help="Port of the router's gRPC server; 0: any free one."),
)  # fmt: skip


def router_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of a router but where clients reach it; `router_from` reads their values."""
    for option in reversed(_ROUTER):
        command = option(command)
    command = client_tls_options(limit_options(dump_options(telemetry_options(command))))
    command = closed_objects_option(command)
    command = sampling_defaults_option(streaming_option(access_options(command)))
    command = template_options(unknown_fields_option(command))
    return lease_option(itl_target_option(command))


def itl_target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for the time between tokens that prompts may cause."""
    return click.option(
        "--itl-target-ms", type=Ratio(0, min_open=True), default=None,
        help="Most milliseconds between two tokens of an answer while its decode worker computes a "
        "prompt: it takes as large a part of the prompt at a time as that allows, and none while "
        "it writes answers if even the least would take longer. When left out, see "
        "--prefill-beside-decode.",
    )(command)  # fmt: skip


def listen_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --host, --insecure, --http-port and --grpc-port."""
    for option in reversed(_LISTEN):
        command = option(command)
    return command


def streaming_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for what streams send."""
    command = click.option(
        "--sse-ping-interval", type=Seconds(0), default=PING_S, show_default=True,
        help="Seconds of silence after which a stream over HTTP sends a comment, or Anthropic's "
        "ping, so that no proxy cuts it; its status line too, if it has sent none yet. 0: never.",
    )(command)  # fmt: skip
    return click.option(
        "--incremental-streaming-output", is_flag=True,
        help="Streams of /generate send only new text; by default, the whole reply so far.",
    )(command)  # fmt: skip


def sampling_defaults_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for sampling values that requests leave out."""
    return click.option(
        "--sampling-defaults", type=click.Choice([source.value for source in SamplingDefaults]),
        default=SamplingDefaults.MODEL.value, show_default=True,
        help="Sampling values that an HTTP request leaves out: those of the model's "
        "generation_config.json, or 1.0 and off.",
    )(command)  # fmt: skip


def closed_objects_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for objects whose JSON schema does not say whether they are closed."""
    return click.option(
        "--closed-objects", is_flag=True,
        help="In answers by a JSON schema, an object whose members the schema names has no others, "
        "unless additionalProperties allows them, as in vLLM and SGLang.",
    )(command)  # fmt: skip


def unknown_fields_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for fields of requests that nobody knows."""
    return click.option(
        "--unknown-fields", type=click.Choice([u.value for u in UnknownFields]),
        default=UnknownFields.WARN.value, show_default=True,
        help="Fields of an HTTP request that are not in docs/requests.md: answered with 400; left "
        "out and named, but answered with 400 if they look misspelt; or left out.",
    )(command)  # fmt: skip


def lease_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for the lease; `lease_ms_from` reads its value."""
    return click.option(
        "--lease", type=Seconds(_MIN_LEASE_S, _MAX_LEASE_S),
        default=DEFAULT_LEASE_MS / 1000, show_default=True,
        help="Seconds of silence after which router and workers count each other as lost.",
    )(command)  # fmt: skip


def lease_ms_from(given: float) -> int:
    """Return the value of --lease in milliseconds."""
    return round(given * 1000)


def check_served_name(options: dict[str, Any]) -> None:
    """Raise StartError for a model name that no request could give."""
    names = options["served_model_name"]
    if names is not None and not all(name.strip() for name in names.split(",")):
        raise StartError("--served-model-name is empty; leave it out for the folder's name")
