"""The options of the servers that clients reach, of a router and of a worker that stands alone."""

from dataclasses import dataclass, field
from pathlib import Path

from baton.api.access.client_limits import ClientLimits
from baton.api.admission.defaults import MAX_JOINED_TOKENS, PING_S
from baton.api.fields.request_fields import UnknownFields
from baton.core.cache_salt import CacheScope
from baton.core.options import File, Group, Number, Whole, option
from baton.rpc.server_certificate import CertificateFiles
from baton.text.generation_config import SamplingDefaults
from baton.text.template_options import TemplateOptions


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ClientServerOptions:
    """The names, rights and limits of clients, and what requests and answers may be."""

    served_model_name: str | None = option(
        None, Group.MODEL,
        "Model name in requests and replies; the folder's name when left out. Further names "
        "follow after commas; * is any name.")
    template: TemplateOptions = field(default_factory=TemplateOptions)
    api_keys: Path | None = option(
        None, Group.ACCESS,
        "A file of API keys, made by `baton keys add`; everybody may call when left out.", File())
    cache_scope: CacheScope = option(
        CacheScope.SHARED, Group.ACCESS,
        "Requests that share cached prefixes: all, or those of one API key (key). A request's "
        "cache_salt divides either further.")
    allowed_hosts: tuple[str, ...] = option(
        (), Group.ACCESS,
        "A name in the HTTP header Host besides localhost and --host; may be given several times.",
        names=("--allowed-host",), metavar="NAME")
    cors_origins: tuple[str, ...] = option(
        (), Group.ACCESS,
        "A web page's origin, as https://example.org, that may call from a browser; may be given "
        "several times.", names=("--cors-origin",), metavar="ORIGIN")
    sampling_defaults: SamplingDefaults = option(
        SamplingDefaults.MODEL, Group.ANSWERS,
        "Sampling values that an HTTP request leaves out: those of the model's "
        "generation_config.json, or 1.0 and off.")
    unknown_fields: UnknownFields = option(
        UnknownFields.WARN, Group.ANSWERS,
        "Fields of an HTTP request that are not in docs/requests.md: answered with 400; left out "
        "and named, but answered with 400 if they look misspelt; or left out.")
    closed_objects: bool = option(
        False, Group.ANSWERS,
        "In answers by a JSON schema, an object whose members the schema names has no others, "
        "unless additionalProperties allows them, as in vLLM and SGLang.")
    incremental_streaming_output: bool = option(
        False, Group.ANSWERS,
        "Streams of /generate send only new text; by default, the whole reply so far.")
    stream_interval: int = option(
        1, Group.ANSWERS,
        "Tokens that an event of a stream has at least, but for its first and last.",
        Whole(1, MAX_JOINED_TOKENS))
    ping_s: float = option(
        PING_S, Group.ANSWERS,
        "Seconds of silence after which a stream over HTTP sends a comment, or Anthropic's ping, "
        "so that no proxy cuts it; its status line too, if it has sent none yet. 0: never.",
        Number(0, unit="seconds"), names=("--sse-ping-interval",))
    limits: ClientLimits = field(default_factory=ClientLimits)
# fmt: on


@dataclass(frozen=True, kw_only=True)
class ClientServerConfig(ClientServerOptions):
    """The settings of both servers: the operator's options, and where they listen."""

    host: str = "127.0.0.1"
    http_port: int = 0  # 0: any free one
    grpc_port: int = 0
    client_tls: CertificateFiles | None = None  # None: in the clear
