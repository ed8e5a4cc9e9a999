"""Checks that keep a web page of another site from using this server through a visitor's browser.

A browser lets any page send requests to any address, also to loopback, but it says in `Host`,
`Origin` and `Sec-Fetch-Site` for whom. Without asking first, it sends only requests that a form
could send; JSON bodies are not among them. See the Fetch standard and OWASP on DNS rebinding.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers
from starlette.types import Scope

from baton.api.replies import ErrorReply, error_response
from baton.api.request_headers import RequestHeaders
from baton.core.address import is_loopback
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

JSON = "application/json"
_BODYLESS = {"GET", "HEAD", "OPTIONS"}
_OF_PAGES = {b"origin", b"sec-fetch-site"}
_OTHER_SITES = {"cross-site", "same-site"}  # same-site: another port of this host, or a sibling


@dataclass(frozen=True)
class BrowserPolicy:
    """The rules for which browsers' pages may call this server, and under which host names. Set
    once, at the start."""

    hosts: frozenset[str] | None = None  # names besides loopback's; None: any `Host` is served
    cors_origins: tuple[str, ...] = ()  # pages' origins that may call, as https://example.org

    @classmethod
    def of_server(
        cls, host: str, allowed_hosts: Collection[str], cors_origins: tuple[str, ...], *, keys: bool
    ) -> Self:
        """Return the policy of a server that listens on `host`.

        The names in `Host` are checked on loopback without API keys, where a name that an attacker
        lets point to 127.0.0.1 would make the page and the server one origin; and wherever
        `allowed_hosts` names some.
        """
        checked = bool(allowed_hosts) or (is_loopback(host) and not keys)
        names = frozenset(name.lower() for name in (*allowed_hosts, host))
        return cls(names if checked else None, cors_origins)

    def refusal(self, headers: RequestHeaders) -> ApiError | None:
        """Return the error for a request that these headers forbid, or None."""
        hosts = headers.getlist("host")
        if self.hosts is not None and not (hosts and all(map(self._serves, hosts))):
            named = ", ".join(hosts) or "missing"
            return _forbidden(
                f"the header Host is {named}; expected localhost, a loopback address or a name "
                "that --allowed-host gives",
                "host",
            )
        if headers.lacks(_OF_PAGES):
            return None
        origins = headers.getlist("origin")
        foreign = [each for each in origins if not self._may_call(each, hosts)]
        site = headers.get("sec-fetch-site", "")
        if foreign or (not origins and site in _OTHER_SITES):
            page = ", ".join(foreign) or "another site"
            return _forbidden(
                f"a page of {page} sent this; start the server with --cors-origin ORIGIN to let "
                "that page's origin call it",
                "origin",
            )
        return None

    def _serves(self, host: str) -> bool:
        name = _without_port(host)
        return self.hosts is None or name in self.hosts or is_loopback(name)

    def _may_call(self, origin: str, hosts: Collection[str]) -> bool:
        if origin in self.cors_origins:
            return True
        scheme, _, authority = origin.partition("://")
        port = {"http": ":80", "https": ":443"}.get(scheme, "")
        own = {each.lower().removesuffix(port) for each in hosts}
        return authority.lower().removesuffix(port) in own


def not_json(scope: Scope, headers: Headers) -> ErrorReply | None:
    """Return the reply 415 to a body of another content type than JSON, or None. An empty body
    needs no type."""
    if scope["method"] in _BODYLESS or not has_body(headers):
        return None
    given = headers.get("content-type", "")
    if given == JSON or given.partition(";")[0].strip().lower() == JSON:
        return None
    reply = error_response(_not_json(given), scope["path"])
    reply.status_code = 415
    return reply


def _without_port(host: str) -> str:
    """Return the name or address in a `Host` header, in lower case, without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def has_body(headers: Headers) -> bool:
    """Return True if a request with these headers has a body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _forbidden(message: str, param: str) -> ApiError:
    return ApiError(ErrorCode.PERMISSION_DENIED, message, param=param)


def _not_json(given: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"the body's content-type is {given[:80] or 'missing'}; send the header "
        f"`Content-Type: {JSON}`",
        param="content-type",
        expected=JSON,
        actual=given[:80],
    )
