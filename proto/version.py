"""The protocol version, sent in every `Hello`. A peer with another major version is refused."""

PROTOCOL_MAJOR = 3  # Hello has no capabilities; an INTERNAL error is no longer retryable
PROTOCOL_MINOR = 0
