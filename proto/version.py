"""The protocol version, sent in every `Hello`.

A peer with another major version is refused, and one whose minor version is more than one apart:
a release raises it once at most, so that each works with the one before it.
"""

# 5: logit_bias, bad_words, allowed_token_ids, stop_regex: a worker that ignores one writes other
# tokens. 4: cache salts.
PROTOCOL_MAJOR = 5
# 2: states that workers report to have cached; shares of several routers; workers that return from
# a drain; recalls; predictions, counts of drafts; bandwidths of links; details that are told once;
# answers that say that drafts were accepted at random;
# several requests in one message to a rank, and several messages of hand-offs in one; small states
# in one message; routers that say their names.
# 1: tokens of a step in columns, to routers that give handles.
PROTOCOL_MINOR = 2
