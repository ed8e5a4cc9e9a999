"""The reasoning of an answer as `encrypted_content`: clients that keep no text send it back.

OpenAI encrypts it, because it hides it. Here the same text stands beside it, so that it is only
coded. Content of other servers cannot be read.
"""

import base64
import binascii

_PREFIX = "baton-1."


def seal(text: str) -> str:
    """Return the `encrypted_content` of a reasoning."""
    return _PREFIX + base64.urlsafe_b64encode(text.encode()).decode()


def unseal(sealed: object) -> str:
    """Return the reasoning of an `encrypted_content`; an empty text for another server's."""
    if not isinstance(sealed, str) or not sealed.startswith(_PREFIX):
        return ""
    try:
        return base64.urlsafe_b64decode(sealed[len(_PREFIX) :].encode()).decode()
    except (binascii.Error, UnicodeError):
        return ""
