"""Names of clusters: one of a running cluster is its alone."""

import re
import secrets

from baton.deploy.errors import StartError

_FORM = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def new_name() -> str:
    return f"baton-{secrets.token_hex(2)}"


def check_name(name: str) -> None:
    """Raise StartError for a name that is no host name, as Ray's namespaces and file names need."""
    if not _FORM.fullmatch(name):
        raise StartError(
            f"--cluster {name!r}: expected 1 to 40 lower-case letters, digits and hyphens, with a "
            "letter or digit at both ends"
        )
