"""The place of a sequence's state in one engine's memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StateRef:
    """The slot and the pages of the first `tokens` tokens of a sequence. They no longer change
    while somebody refers to them; who may write there is the referrer's matter.
    """

    slot: int  # state slot; 0 where the model has no recurrent layers
    pages: tuple[int, ...]  # page p holds tokens [p * page_size, (p + 1) * page_size)
    tokens: int = 0  # 0: nobody needs to know, as where segments say it themselves
    kv_from: int = 0  # tokens whose KV is the prefix cache's, in whole pages: nobody writes it
