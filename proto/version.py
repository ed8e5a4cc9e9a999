"""The protocol that this code speaks: sent in every `Hello`. Another major is refused."""

PROTOCOL_MAJOR = 2  # FirstToken may bring Done
PROTOCOL_MINOR = 2  # 1: StartRequest and PrefillRequest bring priority; 2: RouterMessage, Prefills
