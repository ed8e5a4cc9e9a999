"""The options of who may call a server, and how calls are protected on their way."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from baton.api.access.keys import read_keys
from baton.core.address import is_loopback
from baton.core.cache_salt import CacheScope
from baton.core.errors import ConfigError
from baton.deploy.errors import StartError
from baton.rpc.server_certificate import CertificateFiles, read_server_certificate

_HOST = re.compile(r"[\w.-]+|\[?[0-9a-fA-F:.]+\]?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+|null")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_ACCESS = (
    click.option("--api-keys", type=_FILE, default=None,
                 help="A file of API keys, made by `baton keys add`; everybody may call when left "
                 "out."),
    click.option("--cache-scope", type=click.Choice([scope.value for scope in CacheScope]),
                 default=CacheScope.SHARED.value, show_default=True,
                 help="Requests that share cached prefixes: all, or those of one API key (key). A "
                 "request's cache_salt divides either further."),
    click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME",
                 help="A name in the HTTP header Host besides localhost and --host; may be given "
                 "several times."),
    click.option("--cors-origin", "cors_origins", multiple=True, metavar="ORIGIN",
                 help="A web page's origin, as https://example.org, that may call from a browser; "
                 "may be given several times."),
)  # fmt: skip
_CLIENT_TLS = (
    click.option("--ssl-certfile", type=_FILE, default=None,
                 help="PEM file with the certificate that clients see over HTTPS and gRPC; they "
                 "connect without TLS when left out. Changes take effect within two seconds."),
    click.option("--ssl-keyfile", type=_FILE, default=None,
                 help="PEM file with the key of --ssl-certfile, which other users cannot read."),
)  # fmt: skip

insecure_option = click.option(
    "--insecure", is_flag=True, help="Let everybody who reaches --host call, without API keys."
)


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of API keys, of what they share, and of web pages."""
    for option in reversed(_ACCESS):
        command = option(command)
    return command


def client_tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of TLS for clients; `client_tls_from` reads their values."""
    for option in reversed(_CLIENT_TLS):
        command = option(command)
    return command


def client_tls_from(options: dict[str, Any]) -> CertificateFiles | None:
    """Return the certificate for clients, which has been checked, or None. Raises StartError.

    options: the options' values by parameter name.
    """
    certificate: Path | None = options["ssl_certfile"]
    key: Path | None = options["ssl_keyfile"]
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartError("--ssl-certfile and --ssl-keyfile belong together: give both")
    files = CertificateFiles(certificate.absolute(), key.absolute())
    try:
        read_server_certificate(files)
    except ConfigError as err:
        raise StartError(str(err)) from err
    return files


def check_access(options: dict[str, Any]) -> None:
    """Check the file of keys, and names of hosts and origins. Raises StartError.

    options: the options' values by parameter name.
    """
    keys: Path | None = options["api_keys"]
    try:
        if keys is not None:
            read_keys(keys)
    except ConfigError as err:
        raise StartError(f"--api-keys: {err}") from err
    check_cache_scope(CacheScope(options["cache_scope"]), keys)
    for name in options["allowed_hosts"]:
        if not _HOST.fullmatch(name):
            raise StartError(f"--allowed-host is {name!r}; expected a name, as models.example.org")
    for origin in options["cors_origins"]:
        if not _ORIGIN.fullmatch(origin):
            raise StartError(
                f"--cors-origin is {origin!r}; expected a scheme and a host alone, as "
                "https://example.org or http://localhost:3000"
            )


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
