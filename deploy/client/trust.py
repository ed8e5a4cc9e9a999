"""The certificates that commands accept from a router."""

import http.client
import ssl
import urllib.error
from collections.abc import Callable
from pathlib import Path

from baton.deploy.errors import DeployError, NotRunning

Trust = Callable[[], ssl.SSLContext]
"""Returns the context of the next connection."""

_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME
_OF_OTHERS = {62, 64}  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
_END = "-----END CERTIFICATE-----"


class PinnedCertificate:
    """Trust in the certificates that one file has held, whatever hosts and dates they are for.

    The operator of a cluster names the file, so a server that proves one of them is the operator's,
    also at an address that the certificate does not name, and while a new one takes effect.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = ""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME

    def __call__(self) -> ssl.SSLContext:
        """Return the context, after another look at the file. A file that holds no certificate now
        adds none.
        """
        try:
            text = self._path.read_text()
            if text != self._seen:
                # The server's own comes first. Those after it are authorities, which sign others.
                own = text[: text.index(_END) + len(_END)]
                own = own[own.index("-----BEGIN CERTIFICATE") :]
                self._context.load_verify_locations(cadata=ssl.PEM_cert_to_DER_cert(own))
                self._seen = text
        except (OSError, ValueError):  # ssl.SSLError is an OSError
            pass
        return self._context


def authorities(path: Path) -> Trust:
    """Return the trust in the authorities of a file alone. Raises DeployError."""
    try:
        context = ssl.create_default_context(cafile=path)
    except OSError as err:
        raise DeployError(f"--cacert {path} holds no certificate in PEM: {err}") from err
    return lambda: context


def unanswered(url: str, error: OSError | http.client.HTTPException) -> NotRunning:
    """Return the error of a call to a router that brought no answer."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        if reason.verify_code in _OF_OTHERS:
            remedy = "call the router by a name or address that it has"
        else:
            remedy = "name the file of its authority, or of the certificate itself, with --cacert"
        message = reason.verify_message.rstrip(".")
        return NotRunning(f"the certificate of {url} is not trusted: {message}; {remedy}")
    return NotRunning(f"no router answers at {url}: {reason}")
