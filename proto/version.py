"""The protocol that this code speaks: sent in every `Hello`. Another major is refused."""

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0
