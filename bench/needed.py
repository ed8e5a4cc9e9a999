"""What a hand-off has to move, from the model's configuration alone."""

from baton.engine.config import ModelConfig
from baton.engine.memory.layout import PageLayout, SlotLayout


def handoff_bytes(model: ModelConfig, prompt_tokens: int) -> int:
    """One request's live state, and the KV of its prompt: no page, no slot is rounded up."""
    slot = SlotLayout(model.recurrent, model.conv_dtype, model.ssm_dtype)
    page = PageLayout(model.attention, page_size=1, dtype=model.dtype)
    return slot.state_bytes + prompt_tokens * page.token_bytes
