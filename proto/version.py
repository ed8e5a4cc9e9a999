"""The protocol version, sent in every `Hello`. A peer with another major version is refused."""

PROTOCOL_MAJOR = 4  # cache salts: a worker that ignores one would mix tenants
PROTOCOL_MINOR = 0
