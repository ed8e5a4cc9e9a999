"""The protocol that this code speaks: sent in every `Hello`. Another major is refused."""

PROTOCOL_MAJOR = 2  # FirstToken may bring Done
PROTOCOL_MINOR = 1  # StartRequest and PrefillRequest bring priority
