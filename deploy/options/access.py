"""The options of where clients reach a server, and the checks of who may call it."""

import re
from dataclasses import dataclass
from pathlib import Path

from baton.api.access.keys import read_keys
from baton.api.server.server_options import ClientServerOptions
from baton.core.address import is_loopback
from baton.core.cache_salt import CacheScope
from baton.core.errors import ConfigError
from baton.core.options import File, Group, Number, Whole, option
from baton.deploy.errors import StartError
from baton.rpc.server_certificate import CertificateFiles, read_server_certificate

PORT = Whole(0, 65535)
_HOST = re.compile(r"[\w.-]+|\[?[0-9a-fA-F:.]+\]?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+|null")


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """The addresses of a router for clients."""

    host: str = option(
        "127.0.0.1", Group.ADDRESSES,
        "Address that the router listens on; 0.0.0.0 for every network. On a Ray that is joined, "
        "routers with 0.0.0.0 or :: may run on any host, others on this one.")
    http_port: int = option(
        8000, Group.ADDRESSES,
        "Port of the router's HTTP server; 0: any free one. Also --port.",
        PORT, names=("--http-port", "--port"))
    grpc_port: int = option(
        50051, Group.ADDRESSES, "Port of the router's gRPC server; 0: any free one.", PORT)


@dataclass(frozen=True, kw_only=True)
class ExposureOptions:
    """The choice to let strangers call."""

    insecure: bool = option(
        False, Group.ACCESS, "Let everybody who reaches --host call, without API keys.")


@dataclass(frozen=True, kw_only=True)
class ClientTlsOptions:
    """The encryption of what clients send."""

    ssl_certfile: Path | None = option(
        None, Group.ACCESS,
        "PEM file with the certificate that clients see over HTTPS and gRPC; they connect without "
        "TLS when left out. Changes take effect within two seconds.", File())
    ssl_keyfile: Path | None = option(
        None, Group.ACCESS,
        "PEM file with the key of --ssl-certfile, which other users cannot read.", File())


@dataclass(frozen=True, kw_only=True)
class StopOptions:
    """The end of a process."""

    drain_s: float = option(
        5.0, Group.COMMAND, "Seconds for running requests at the stop.",
        Number(0, unit="seconds"), names=("--drain",))
# fmt: on


def client_tls_of(options: ClientTlsOptions) -> CertificateFiles | None:
    """Return the certificate for clients, which has been checked, or None. Raises StartError."""
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartError("--ssl-certfile and --ssl-keyfile belong together: give both")
    files = CertificateFiles(certificate, key)
    try:
        read_server_certificate(files)
    except ConfigError as err:
        raise StartError(str(err)) from err
    return files


def check_access(server: ClientServerOptions) -> None:
    """Check the file of keys, and names of models, hosts and origins. Raises StartError."""
    try:
        if server.api_keys is not None:
            read_keys(server.api_keys)
    except ConfigError as err:
        raise StartError(f"--api-keys: {err}") from err
    check_cache_scope(server.cache_scope, server.api_keys)
    for name in server.allowed_hosts:
        if not _HOST.fullmatch(name):
            raise StartError(f"--allowed-host is {name!r}; expected a name, as models.example.org")
    for origin in server.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise StartError(
                f"--cors-origin is {origin!r}; expected a scheme and a host alone, as "
                "https://example.org or http://localhost:3000"
            )
    names = server.served_model_name
    if names is not None and not all(name.strip() for name in names.split(",")):
        raise StartError("--served-model-name is empty; leave it out for the folder's name")


def check_exposed(host: str, api_keys: Path | None, *, insecure: bool) -> None:
    """Raise StartError for an address that others may reach where nothing keeps them out."""
    if api_keys is None and not insecure and not is_loopback(host):
        raise StartError(
            f"--host {host} is not loopback, and everybody who reaches it could use this server; "
            "give --api-keys FILE (`baton keys add NAME` makes one), or --insecure to allow that"
        )


def check_cache_scope(scope: CacheScope, api_keys: Path | None) -> None:
    """Raise StartError where caches are to be kept apart by keys that nobody has."""
    if scope is CacheScope.KEY and api_keys is None:
        raise StartError("--cache-scope key needs --api-keys FILE: else no request has a key")


def readable_on_the_way(
    host: str, api_keys: Path | None, client_tls: CertificateFiles | None
) -> str | None:
    """Return a warning if whoever can read the network can read what clients send, else None."""
    if client_tls is not None or is_loopback(host):
        return None
    what = "Prompts and answers" if api_keys is None else "API keys, prompts and answers"
    return (
        f"{what} travel readable: clients of --host {host} connect without TLS. Give "
        "--ssl-certfile and --ssl-keyfile, or put a proxy with TLS in front."
    )
