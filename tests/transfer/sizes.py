"""The bytes that a hand-off must move, and those of the messages around them."""

from baton.core.handoff_ids import TicketId
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.transfer.channels.frames import HEADER_BYTES, encode_opening
from baton.transfer.tickets import Claim

NOTE_BYTES = len(encode_opening(Claim(TicketId(0, 0), 0, 0))) + HEADER_BYTES


def bytes_needed(slots: SlotLayout, pages: PageLayout, tokens: int, kv_from: int = 0) -> int:
    """Return what a hand-off of `tokens` tokens must move when the KV below `kv_from` is there."""
    return slots.state_bytes + (tokens - kv_from) * pages.token_bytes
