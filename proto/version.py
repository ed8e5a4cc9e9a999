"""The protocol version, sent in every `Hello`. A peer with another major version is refused."""

# 5: logit_bias, bad_words, allowed_token_ids, stop_regex: a worker that ignores one writes other
# tokens. 4: cache salts.
PROTOCOL_MAJOR = 5
# 1: tokens of a step in columns, to routers that give handles.
PROTOCOL_MINOR = 1
