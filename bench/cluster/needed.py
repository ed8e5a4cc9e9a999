"""The number of bytes that a hand-off must move, from the model's configuration alone."""

from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.settings.config import ModelConfig


def handoff_bytes(model: ModelConfig, prompt_tokens: int) -> int:
    """Return the bytes of one request's live state and its prompt's KV, without rounding up."""
    slot = SlotLayout(model.recurrent, model.conv_dtype, model.ssm_dtype)
    page = PageLayout(model.attention, page_size=1, dtype=model.dtype)
    return slot.state_bytes + prompt_tokens * page.token_bytes
